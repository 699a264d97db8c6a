"""Vendoring: the sources of fairlead-vllm as a package of its own, copied from the gateway's tree.

The modules of backends/vllm_plugin become the package `fairlead_vllm`. The modules of policies/ that they import,
directly or not, become `fairlead_vllm._policies`; imports are rewritten. So no package of the gateway is installed
beside vLLM, and every rule exists once.
"""

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

PLUGIN = Path(__file__).resolve().parents[1]
TREE = PLUGIN.parents[1]
RENAMED = {"backends.vllm_plugin": "fairlead_vllm", "policies": "fairlead_vllm._policies"}
IMPORT = re.compile(rf"^(\s*(?:from|import) )({'|'.join(map(re.escape, RENAMED))})(?=[.\s])", re.MULTILINE)
OUR_BACKEND = re.compile(r"^(build-backend|backend-path) = .*\n", re.MULTILINE)


def stage(directory: Path) -> None:
    """Write a project that any setuptools can build into an empty directory."""
    project = (PLUGIN / "pyproject.toml").read_text(encoding="utf-8")
    standard = 'build-backend = "setuptools.build_meta"\n'
    project = OUR_BACKEND.sub(lambda line: standard if line[1] == "build-backend" else "", project)
    (directory / "pyproject.toml").write_text(project, encoding="utf-8")
    shutil.copy(PLUGIN / "README.md", directory)
    shutil.copy(TREE / "LICENSE", directory)
    for module in _with_what_they_import(f"backends.vllm_plugin.{path.stem}" for path in PLUGIN.glob("*.py")):
        source = _source(module)
        target = directory / _renamed(module.removesuffix(".__init__")).replace(".", "/")
        target = target / "__init__.py" if source.name == "__init__.py" else target.with_suffix(".py")
        target.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8")
        target.write_text(IMPORT.sub(lambda found: found[1] + RENAMED[found[2]], text), encoding="utf-8")
    (directory / "fairlead_vllm" / "py.typed").touch()


def _with_what_they_import(modules: Iterator[str]) -> set[str]:
    """Return these modules, all modules of this tree that they import, and the packages of all of them."""
    found: set[str] = set()
    ahead = list(modules)
    while ahead:
        module = ahead.pop()
        if module not in found:
            found.add(module)
            ahead += _needed(module)
    return found


def _needed(module: str) -> Iterator[str]:
    yield from (package for package in _parents(module) if _renamed(package) != package)
    for node in ast.walk(ast.parse(_source(module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and _renamed(node.module) != node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in [node.module, *names] if _exists(name))
        elif isinstance(node, ast.Import):
            # `import policies.x` binds a name that differs in the new package.
            assert all(_renamed(alias.name) == alias.name for alias in node.names), f"{module}: import by from"


def _parents(module: str) -> Iterator[str]:
    while "." in module:
        module = module.rpartition(".")[0]
        yield module


def _renamed(module: str) -> str:
    for name, new in RENAMED.items():
        if module == name or module.startswith(f"{name}."):
            return new + module[len(name) :]
    return module


def _exists(module: str) -> bool:
    path = TREE / module.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def _source(module: str) -> Path:
    path = TREE / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
