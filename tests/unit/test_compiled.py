"""What the compiler would refuse at run time alone, read from the source: so that `make wheel` makes what works, though
most runs of the tests compile nothing.
"""

import ast
import re
from functools import cache
from pathlib import Path

import setup

ROOT = Path(__file__).parents[2]
PACKAGES = ("policies", "backends", "gateway")
OPEN_BASES = {"Protocol", "NamedTuple", "TypedDict", "Exception", "Enum", "StrEnum", "IntEnum"}
"""Classes of these kinds are no native ones, or are made by their base's own constructor."""
HAS_A_BASE = re.compile(r"^\s*class \w+\(", re.MULTILINE)
PLUGIN = ROOT / "backends/vllm_plugin"  # a wheel of its own, which nothing of this one is in


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def classes(path: Path) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)}


def file_of(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def base_class(path: Path, name: str) -> tuple[Path, str]:
    """Where the class of this name in the file is from: the file that is imported from, or the file itself."""
    module, known_there = imported(path).get(name, ("", ""))
    return base_class(file_of(module), known_there) if module else (path, name)


@cache
def imported(path: Path) -> dict[str, tuple[str, str]]:
    """Names in the file that are from modules of ours, with the module and the name there."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.split(".")[0] in PACKAGES
        for alias in node.names
    }


def names_of_bases(node: ast.ClassDef) -> list[str]:
    bases = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return [base.id for base in bases if isinstance(base, ast.Name)]


def is_closed(path: Path, name: str, compiled: set[Path]) -> bool:
    """Whether an interpreted class cannot inherit from this one, of which no object can be made then."""
    node = classes(path).get(name)
    if node is None or path not in compiled:
        return False
    if any("allow_interpreted_subclasses" in ast.unparse(decorator) for decorator in node.decorator_list):
        return False
    bases = names_of_bases(node)
    return OPEN_BASES.isdisjoint(bases) and not any(is_open(*base_class(path, base)) for base in bases)


def is_open(path: Path, name: str) -> bool:
    """Whether a base of the class is of an open kind."""
    node = classes(path).get(name)
    bases = [] if node is None else names_of_bases(node)
    return not OPEN_BASES.isdisjoint(bases) or any(is_open(*base_class(path, base)) for base in bases)


def test_no_interpreted_class_inherits_from_a_compiled_one_that_is_not_open(monkeypatch):
    monkeypatch.chdir(ROOT)
    compiled = {ROOT / name for name in setup.modules()}
    files = [path for package in PACKAGES for path in ROOT.joinpath(package).rglob("*.py")]
    interpreted = [
        path
        for path in files
        if path not in compiled and not path.is_relative_to(PLUGIN) and HAS_A_BASE.search(path.read_text())
    ]
    assert {Path(path).parts[0] for path in setup.modules()} >= {"policies", "backends"}
    wrong = [
        f"{path.relative_to(ROOT)}: {name}({base})"
        for path in interpreted
        for name, node in classes(path).items()
        for base in names_of_bases(node)
        if is_closed(*base_class(path, base), compiled)
    ]
    assert wrong == []


def test_no_compiled_function_sets_a_variable_of_the_function_around_it(monkeypatch):
    """The compiler reads the variable by the type that it had before, and raises TypeError where it is another now."""
    monkeypatch.chdir(ROOT)
    texts = {path: path.read_text() for path in map(ROOT.joinpath, setup.modules())}
    named = [path for path, text in texts.items() if "nonlocal" in text]  # in a comment, too
    wrong = [path for path in named for node in ast.walk(tree(path)) if isinstance(node, ast.Nonlocal)]
    assert wrong == []


def test_no_compiled_constant_is_a_tuple_that_begins_with_a_float(monkeypatch):
    """mypyc 2.4 takes such a Final for one that was not set, and raises NameError where it is read."""
    monkeypatch.chdir(ROOT)
    constants = [
        (path, node.value.elts)
        for path in map(Path, setup.modules())
        for node in tree(path).body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "Final"
        if isinstance(node.value, ast.Tuple) and not any(isinstance(each, ast.Starred) for each in node.value.elts)
    ]
    assert constants
    assert [
        f"{path}:{first.lineno}"
        for path, (first, *_) in constants
        if isinstance(first, ast.Constant) and type(first.value) is float
    ] == []


def test_no_compiled_slice_changes_what_it_is_cut_by(monkeypatch):
    """mypyc 2.4 computes the bounds of a memoryview's slice twice: what was written there was written twice."""
    monkeypatch.chdir(ROOT)
    pure = {"bisect_right", "end", "index", "len", "max", "min", "rindex", "start"}
    called = {
        (name, call.func.id if isinstance(call.func, ast.Name) else call.func.attr)
        for name in setup.modules()
        for node in ast.walk(tree(Path(name)))
        if isinstance(node, ast.Slice)
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name | ast.Attribute)
    }
    assert called
    assert {(name, function) for name, function in called if function not in pure} == set()


def test_no_compiled_coroutine_catches_exceptions_but_those_of_a_backends_connection(monkeypatch):
    """With those of a call's path compiled by mypyc 2.4, errors became TypeErrors, and a cancelled call a crash."""
    monkeypatch.chdir(ROOT)
    catching = {
        name
        for name in setup.modules()
        for node in ast.walk(tree(Path(name)))
        if isinstance(node, ast.AsyncFunctionDef)
        if any(isinstance(each, ast.Try | ast.With | ast.AsyncWith) for each in ast.walk(node))
    }
    assert catching == {"backends/connection.py"}


def test_make_test_compiled_runs_folders_that_exist():
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    value = re.search(r"^RUN_COMPILED = (.*)$", makefile, re.MULTILINE)
    assert value is not None
    found = re.fullmatch(r"(.*)\$\(addprefix (\S+), (.*)\)(.*)", value[1])
    assert found is not None, value[1]
    before, prefix, inside, after = found.groups()
    paths = [*before.split(), *(prefix + each for each in inside.split()), *after.split()]
    assert [each for each in paths if not (ROOT / "tests" / each).exists()] == []
