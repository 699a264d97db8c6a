"""What goes into vLLM's environment: one package, which needs nothing of the gateway's tree."""

import ast
import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
VENDORING = ROOT / "backends" / "vllm_plugin" / "wheel" / "vendoring.py"
NEED_VLLM = {"endpoint", "scheduler", "stat_logger"}
OF_VLLM = {"fastapi", "vllm"}


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    specification = importlib.util.spec_from_file_location("vendoring", VENDORING)
    vendoring = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(vendoring)
    directory = tmp_path_factory.mktemp("staged")
    vendoring.stage(directory)
    return directory


def modules(staged):
    return sorted(
        path.relative_to(staged).with_suffix("").as_posix().replace("/", ".") for path in staged.rglob("*.py")
    )


def test_there_is_one_package_with_the_plugins_modules_and_what_they_need(staged):
    names = {path.name for path in staged.iterdir()}
    assert names == {"LICENSE", "README.md", "pyproject.toml", "fairlead_vllm"}
    own = {path.stem for path in VENDORING.parents[1].glob("*.py")}
    found = modules(staged)
    assert {name.split(".")[1] for name in found if name.count(".") == 1} == own
    assert {"fairlead_vllm._policies.batching.fair", "fairlead_vllm._policies.step_time.learner"} <= set(found)
    assert not [name for name in found if "scheduler" in name and "_policies" in name], "nothing that is not needed"


def test_it_imports_vllm_and_what_vllm_brings_and_the_standard_library_alone(staged):
    allowed = sys.stdlib_module_names | OF_VLLM | {"fairlead_vllm"}
    for path in staged.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in names} <= allowed, path


def test_all_that_does_not_need_vllm_can_be_imported_without_the_tree(staged):
    importable = [name.removesuffix(".__init__") for name in modules(staged) if name.split(".")[-1] not in NEED_VLLM]
    code = f"""
import sys
sys.path.insert(0, {str(staged)!r})
for name in {importable!r}:
    __import__(name)
assert not {{"policies", "backends", "gateway"}} & {{name.partition(".")[0] for name in sys.modules}}
from fairlead_vllm._policies.batching.fair import Decode, form_batch
from fairlead_vllm._policies.step_time import StepTimeModel
print(form_batch([Decode("a", 1.0, 1.0, 5)], [], model=StepTimeModel(0.1, 0.1), tokens_max=8))
"""
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("{'a': 1}\n", "")


def test_the_entry_points_are_there_and_the_build_is_setuptools_own(staged):
    project = tomllib.loads((staged / "pyproject.toml").read_text())
    assert project["build-system"] == {"requires": ["setuptools>=77"], "build-backend": "setuptools.build_meta"}
    for group in ("vllm.stat_logger_plugins", "vllm.endpoint_plugins"):
        (value,) = project["project"]["entry-points"][group].values()
        module, name = value.split(":")
        classes = ast.parse((staged / f"{module.replace('.', '/')}.py").read_text()).body
        assert name in {node.name for node in classes if isinstance(node, ast.ClassDef)}
