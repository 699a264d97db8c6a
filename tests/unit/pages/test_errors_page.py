"""docs/reference/errors.md has every reason for which the scheduler rejects a call, with its status."""

import re
from pathlib import Path

from gateway.api.errors import DROPPED_REASON_HEADER, PROBLEM_OF_REASON

PAGE = (Path(__file__).parents[3] / "docs/reference/errors.md").read_text(encoding="utf-8")


def test_every_reason_and_its_status_is_on_the_page():
    rows = re.findall(r"\| (\d{3}) \| `([a-z-]+)` \|$", PAGE, re.MULTILINE)
    assert set(rows) == {(str(each.status), each.headers[DROPPED_REASON_HEADER]) for each in PROBLEM_OF_REASON.values()}
