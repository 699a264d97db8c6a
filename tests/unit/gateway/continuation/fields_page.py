"""The table of fields in docs/continue.md."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[4] / "docs" / "continue.md").read_text()
_TABLE = PAGE.split("\n## Every field\n")[1].split("\n## ")[0]
FIELDS = {
    decision: re.findall(r"`(\w+)`", names)
    for decision, names in re.findall(r"^\| ([a-z][^|]+) \| (`.+) \|$", _TABLE, re.MULTILINE)
}
"""The names of fields by what a continuation does with them."""
OTHERS = set(re.findall(r"`(\w+)`", PAGE.split("\nKnown besides: ")[1].split("\n\n")[0]))
"""Names of fields that vLLM does not have, and that are known nevertheless."""
