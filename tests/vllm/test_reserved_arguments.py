"""No name that vLLM itself reads in `vllm_xargs` may be a client's, unless its value is checked at admission.

Found in its source, so that a new version with another name fails here. It needs no server.
"""

import ast

import pytest
from processes import INSTALLED

from gateway.api.fields import RESERVED_XARGS, RESERVED_XARGS_PREFIXES, changes

ARGUMENTS = ("extra_args", "vllm_xargs")
KERNELS = {"layers", "ops"}  # which have extra_args of their own
# What models document for their clients. The engine checks `diffusion_*` when a call is admitted
# (vllm/utils/diffusion.py); the OCR models' are numbers in the loop of their own processors.
OF_MODELS = {"ngram_size", "window_size", "whitelist_token_ids"}
OF_MODELS_PREFIX = "diffusion_"


def vllm_source():
    found = next((INSTALLED / "venv" / "lib").glob("python3*/site-packages/vllm"), None)
    if found is None:
        pytest.skip("no vLLM is installed")
    texts = ((path, path.read_text()) for path in found.rglob("*.py") if KERNELS.isdisjoint(path.parts))
    return [text for _, text in sorted(texts) if any(name in text for name in ARGUMENTS)]


def names_read(tree):
    """The names that are read out of engine arguments: of the attribute itself, or of a variable that was set to it."""
    variables = set(ARGUMENTS)
    for node in ast.walk(tree):
        value = ast.unparse(node.value) if isinstance(node, ast.Assign) else ""
        if any(name in value for name in ARGUMENTS) and ".get(" not in value:
            variables |= {target.id for target in node.targets if isinstance(target, ast.Name)}

    def is_arguments(node):
        return ast.unparse(node).split(".")[-1] in variables

    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("get", "pop") and is_arguments(node.func.value) and node.args:
                yield node.args[0]
        elif isinstance(node, ast.Subscript) and is_arguments(node.value):
            yield node.slice
        elif isinstance(node, ast.Compare) and any(map(is_arguments, node.comparators)):
            yield node.left


def test_what_vllm_reads_of_the_engines_arguments_is_no_clients_to_give():
    found = {
        name.value
        for text in vllm_source()
        for name in names_read(ast.parse(text))
        if isinstance(name, ast.Constant) and isinstance(name.value, str)
    }
    assert found >= {"kv_transfer_params", "ec_transfer_params", "kv_cache_report_mode", "session_id"}, "the search"
    of_models = {name for name in found if name in OF_MODELS or name.startswith(OF_MODELS_PREFIX)}
    for name in found - of_models:
        assert name in RESERVED_XARGS or name.startswith(RESERVED_XARGS_PREFIXES), name
        assert changes({"vllm_xargs": {name: "x", "mine": 1}}, salted=False) == {"vllm_xargs": {"mine": 1}}
