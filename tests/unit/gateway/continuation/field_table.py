"""The table of fields: what a continuation does with each."""

import re
import tomllib
from pathlib import Path

PAGE = (Path(__file__).parents[4] / "docs" / "continue.md").read_text(encoding="utf-8")
_TABLE = tomllib.loads((Path(__file__).parent / "fields.toml").read_text(encoding="utf-8"))
FIELDS: dict[str, list[str]] = _TABLE["vllm"]
"""The names of vLLM's fields by what a continuation does with them."""
OTHERS = set(_TABLE["others"]["names"])
"""Names of fields that vLLM does not have, and that are known nevertheless."""
EXCLUDING = re.findall(r"`(\w+)`", PAGE.split("\nThe fields are ")[1].split("\n\n")[0])
"""The names of the fields that exclude a stream, as the page says."""
