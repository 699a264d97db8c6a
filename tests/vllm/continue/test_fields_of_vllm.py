"""Every field that vLLM takes is in the table of fields: what a continuation does with it was decided."""

import ast
import sys
from pathlib import Path

from processes import INSTALLED

sys.path.append(str(Path(__file__).parents[2] / "unit/gateway/continuation"))
from field_table import FIELDS

OPENAI = "venv/lib/python*/site-packages/vllm/entrypoints/openai"


def fields_of(module: str, name: str) -> set[str]:
    """The fields of a request, from the source: to import vLLM takes many seconds."""
    (path,) = INSTALLED.glob(f"{OPENAI}/{module}/protocol.py")
    (body,) = (each.body for each in ast.parse(path.read_text()).body if getattr(each, "name", None) == name)
    names = {each.target.id for each in body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)}
    return {each for each in names if not each.startswith("_")}


def test_every_field_of_vllm_is_in_the_table_and_no_other():
    taken = fields_of("chat_completion", "ChatCompletionRequest") | fields_of("completion", "CompletionRequest")
    assert taken == {name for row in FIELDS.values() for name in row}
