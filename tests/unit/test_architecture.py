"""The direction of imports, the purity of policies/, and functions of a readable length: read from the source by `ast`.

gateway -> backends -> policies -> the standard library, and nothing back. A decision depends on facts alone, so
policies/ may not reach a clock, chance, the system or the network. Only composition roots name concrete policies.
"""

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("policies", "backends", "gateway")  # each may import itself and those before it
IMPURE = {"asyncio", "time", "random", "os", "logging", "aiohttp", "redis", "opentelemetry", "socket", "threading"}
IMPURE |= {"datetime", "secrets", "selectors", "signal", "subprocess", "uuid", "uvloop"}
# The vocabulary, prices and step times are values, which every module may name, and so is the question that a placement
# answers.
VALUES = (
    "policies.types",
    "policies.call_life",
    "policies.accounts.cost",
    "policies.placement.base",
    "policies.capacity.prefix_index",
    "policies.accounts.checkpoint",
    "policies.sessions.checkpoint",
    "policies.admission.rate_window",
    "policies.admission.scopes",
    "policies.scheduler_protocol",
    "policies.facts",
    "policies.fairness.bounds",
    "policies.fairness.fair_shares",
    "policies.fairness.fairness_bound",
)
VALUES += (
    "policies.step_time",
    "policies.step_time.fit",
    "policies.step_time.learner",
    "policies.step_time.model",
    "policies.step_time.observation",
    "policies.batching.fair",
    "policies.batching.pab",
)  # and how long a step takes, and what it takes in
VALUES += tuple(
    f"policies.slo.{name}" for name in ("attainment", "timeliness", "engine_priority")
)  # and what was promised
COMPOSITION_ROOTS = (
    "gateway/app.py",
    "gateway/scheduling/assembly.py",
    "backends/simulation/world.py",
    "backends/vllm_plugin/engine_accounts.py",  # an engine's scheduler is put together there
    "backends/vllm_plugin/queue_order.py",
)
CONFIG = "gateway/config/"  # may read the tables' keys
# A folder may import those before it in its package, never one after it. Files beside the folders are not in the table:
# those of a package's vocabulary stand below them, those that put it together above.
FOLDERS = {
    "policies": (
        "accounts", "admission", "step_time", "prediction", "fairness", "batching", "limit", "capacity", "placement",
        "fleet", "queueing", "sessions", "slo", "pool",
    ),
    "backends": ("meters", "discovery", "vllm_plugin", "engine", "simulation"),
    "gateway": (
        "cluster", "api", "config", "store", "identity", "ports", "scheduling", "observability",
        "simulate", "http", "registry", "budgets", "calibrate", "continuation", "intake",
        "bench", "forwarding", "live", "handlers",
        "web", "steering", "admin", "shared_order", "workers", "top",
    ),
}  # fmt: skip
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTION_LINES_MAX = 60
METHODS_MAX = 30  # of a class: a class with more answers more than one question

FILES = sorted(
    path.relative_to(ROOT).as_posix() for package in PACKAGES for path in ROOT.joinpath(package).rglob("*.py")
)
POLICIES = [file for file in FILES if file.startswith("policies/")]


@dataclass(frozen=True)
class Source:
    """What the rules ask of a file. Its tree is not kept: the collector would look at all trees over and over."""

    imports: list[tuple[str, list[str]]]
    """Every module that is imported, wherever in the file, and the names that are taken from it."""
    functions: list[tuple[str, int]]  # and their lines
    classes: list[tuple[str, int, bool]]  # and their methods, and whether a docstring says what they are


@cache
def parse(file: str) -> Source:
    return read(ROOT.joinpath(file).read_text(encoding="utf-8"))


def read(text: str) -> Source:
    imports: list[tuple[str, list[str]]] = []
    functions, classes = [], []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imports += ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            imports.append((node.module or "", [alias.name for alias in node.names]))
        elif isinstance(node, FUNCTIONS):
            functions.append((node.name, (node.end_lineno or node.lineno) - node.lineno + 1))
        elif isinstance(node, ast.ClassDef):
            methods = sum(isinstance(each, FUNCTIONS) for each in node.body)
            classes.append((node.name, methods, bool(ast.get_docstring(node))))
    return Source(imports, functions, classes)


def top(module: str) -> str:
    return module.partition(".")[0]


def wrong_way(file: str, source: Source) -> list[str]:
    """Modules of ours that a file of this package may not import."""
    above = PACKAGES[PACKAGES.index(file.partition("/")[0]) + 1 :]
    return [module for module, _ in source.imports if top(module) in (*above, "tests")]


def impure(source: Source) -> list[str]:
    """Modules that a decision may not depend on: outside the standard library, or on a clock, chance or a system."""
    allowed = (sys.stdlib_module_names - IMPURE) | {"policies"}
    return [module for module, _ in source.imports if top(module) not in allowed]


def concrete(file: str, source: Source) -> list[str]:
    """Parts of the scheduler that only a composition root may name."""
    found = []
    for module, names in source.imports:
        if top(module) != "policies" or module in VALUES:
            continue
        if module == "policies":
            found += [name for name in names if f"policies.{name}" not in VALUES]
        elif file.startswith(CONFIG):
            found += [name for name in names if not name.isupper()]
        else:
            found += names or [module]
    return found


def long_functions(source: Source) -> list[tuple[str, int]]:
    return [(name, lines) for name, lines in source.functions if lines > FUNCTION_LINES_MAX]


def undocumented(_: str, source: Source) -> list[str]:
    """Public classes without a docstring."""
    return [name for name, _, has_docstring in source.classes if not name.startswith("_") and not has_docstring]


def imports_of_later_folders(file: str, source: Source) -> list[str]:
    package, folder, *rest = file.split("/")
    if not rest:
        return []
    order = FOLDERS[package]
    later = {f"{package}.{each}" for each in order[order.index(folder) + 1 :]}
    modules = [full for name, taken in source.imports for full in (name, *(f"{name}.{each}" for each in taken))]
    return [each for each in modules if ".".join(each.split(".")[:2]) in later]


def module_of(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def arrows(files: Iterable[str]) -> dict[str, set[str]]:
    """The modules that each module names in an import, wherever it stands, for types alone too."""
    sources = {module_of(file): parse(file) for file in files}
    named = {
        module: {full for name, taken in source.imports for full in (name, *(f"{name}.{each}" for each in taken))}
        for module, source in sources.items()
    }
    return {module: (full & sources.keys()) - {module} for module, full in named.items()}


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle, and those that lead to them; empty where there are none."""
    left = dict(graph)
    while ends := [module for module, to in left.items() if not to & left.keys()]:
        for module in ends:
            del left[module]
    return sorted(left)


def offences(files: Iterable[str], found: Callable[[str, Source], object]) -> dict[str, object]:
    """What a rule finds, by file: all of it at once, so that a failing test names every offence."""
    return {file: each for file in files if (each := found(file, parse(file)))}


def test_imports_go_from_gateway_to_backends_to_policies_and_never_back():
    assert offences(FILES, wrong_way) == {}


def test_policies_import_the_standard_library_alone_and_nothing_of_it_that_is_not_pure():
    # mypy_extensions has marks for the compiler, which do nothing.
    assert offences(POLICIES, lambda _, source: [each for each in impure(source) if each != "mypy_extensions"]) == {}


def test_the_shared_order_is_as_pure_as_policies_but_for_its_encoding():
    def found(_: str, source: Source) -> list[str]:
        return [each for each in impure(source) if each != "msgspec" and not each.startswith("gateway.cluster")]

    assert offences([file for file in FILES if file.startswith("gateway/cluster/")], found) == {}


def test_only_composition_roots_name_concrete_policies():
    assert offences([file for file in FILES if file not in (*POLICIES, *COMPOSITION_ROOTS)], concrete) == {}


def test_a_function_is_short_enough_to_read():
    assert offences(FILES, lambda _, source: long_functions(source)) == {}


def test_a_folder_imports_only_those_below_it():
    assert offences(FILES, imports_of_later_folders) == {}


def test_no_files_import_each_other_in_a_circle():
    assert circle(arrows(FILES)) == []


def test_no_module_imports_what_runs_a_gateway():
    graph = arrows(FILES)
    assert {module for module, to in graph.items() if "gateway.serve" in to} == {"gateway.cli"}
    assert {module for module, to in graph.items() if "gateway.cli" in to} == set()


def test_a_class_has_few_enough_methods_to_know():
    def found(_: str, source: Source) -> list[str]:
        return [name for name, methods, _ in source.classes if methods > METHODS_MAX]

    assert offences(FILES, found) == {}


def test_a_class_name_means_one_thing():
    names = Counter(name for file in FILES for name, _, _ in parse(file).classes)
    assert [name for name, count in names.items() if count > 1] == []


def test_a_public_class_says_what_it_is():
    assert offences(FILES, undocumented) == {}


def test_the_table_of_folders_is_complete():
    for package, folders in FOLDERS.items():
        present = {path.parent.name for path in ROOT.joinpath(package).glob("*/__init__.py")}
        assert set(folders) == present


def test_the_rules_find_a_folder_that_imports_one_above_it():
    source = read("from gateway import admin, api\nfrom gateway.cluster import wire")
    assert imports_of_later_folders("gateway/api/x.py", source) == ["gateway.admin"]
    assert imports_of_later_folders("gateway/x.py", source) == []


def test_the_rules_find_a_circle():
    assert circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


def test_the_rules_are_about_files_that_exist():
    assert {file.partition("/")[0] for file in FILES} == set(PACKAGES)
    assert set(COMPOSITION_ROOTS) <= set(FILES)


@pytest.mark.parametrize(
    "source",
    ["import time", "from time import monotonic", "import os.path", "def f():\n    import random", "import aiohttp"],
)
def test_the_rules_find_what_is_not_pure_wherever_it_stands(source):
    assert len(impure(read(source))) == 1


def test_the_rules_find_a_function_that_is_too_long_among_others_of_its_name():
    body = "    pass\n" * FUNCTION_LINES_MAX
    assert long_functions(read(f"def f():\n{body}def f():\n    pass\n")) == [("f", FUNCTION_LINES_MAX + 1)]


def test_the_rules_find_a_public_class_without_a_docstring():
    assert undocumented("x.py", read('class _A: pass\nclass B: pass\nclass C: "A C."')) == ["B"]


@pytest.mark.parametrize(
    ("file", "source", "found"),
    [
        ("policies/x.py", "from backends.pool import BackendPool", ["backends.pool"]),
        ("backends/x.py", "import gateway.app", ["gateway.app"]),
        ("gateway/x.py", "import backends.pool", []),
        ("gateway/x.py", "from tests.fake import Fake", ["tests.fake"]),
    ],
)
def test_the_rules_find_imports_that_go_back(file, source, found):
    assert wrong_way(file, read(source)) == found


@pytest.mark.parametrize(
    ("file", "source", "found"),
    [
        ("gateway/x.py", "from policies.types import Request", []),
        ("gateway/x.py", "from policies import types", []),
        ("gateway/x.py", "from policies.scheduler import Scheduler", ["Scheduler"]),
        ("gateway/x.py", "import policies.fairness", ["policies.fairness"]),
        ("gateway/x.py", "from policies import fairness", ["fairness"]),
        ("gateway/config/x.py", "from policies.fairness import FAIRNESS", []),
        ("gateway/config/x.py", "from policies.fairness import Fifo", ["Fifo"]),
    ],
)
def test_the_rules_find_concrete_policies_outside_the_composition_roots(file, source, found):
    assert concrete(file, read(source)) == found
