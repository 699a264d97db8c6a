"""Cross-section problems of a configuration that also has wrong fields, so that all problems are reported at once.

pydantic checks rules across fields only when each field is valid. So the wrong fields are removed (their defaults
apply) and the rest is validated again; only the cross-section problems of that run are new.
"""

import copy
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_settings import SettingsError

from gateway.config.config import Config
from gateway.config.problems import Loc


def disagreements_of_the_rest(data: dict[str, Any], error: ValidationError) -> list[tuple[Loc, str]]:
    """The path and message of each cross-section problem that the wrong fields hid."""
    wrong = [entry["loc"] for entry in error.errors(include_url=False, include_input=False)]
    if () in wrong:
        return []  # the error is about cross-section rules already
    rest = copy.deepcopy({name: value for name, value in data.items() if value is not None})
    for loc in wrong:
        _take_out(rest, loc)
    try:
        Config(**rest)
    except ValidationError as remaining:
        return [found for found in _disagreements(remaining) if not _is_about(found[0], wrong)]
    except SettingsError:
        return []
    return []


def _take_out(data: dict[str, Any], loc: Loc) -> None:
    """Remove the innermost named value at `loc`; where the file does not contain it, the whole section."""
    at: Any = data
    for depth, part in enumerate(loc):
        if isinstance(at, dict) and part in at:
            if depth > 0 and (depth == len(loc) - 1 or not isinstance(at[part], dict | list)):
                del at[part]
                return
        elif not isinstance(at, list) or not isinstance(part, int):
            break
        at = at[part]
    data.pop(str(loc[0]), None)


def _disagreements(error: ValidationError) -> Iterator[tuple[Loc, str]]:
    for entry in error.errors(include_url=False, include_input=False):
        if entry["type"] == "disagreement":
            yield from entry["ctx"]["problems"]


def _is_about(path: Loc, wrong: list[Loc]) -> bool:
    """Whether a wrong field of the same section may be the cause of this problem."""
    return any(path[0] == loc[0] and path[:2] == loc[:2] for loc in wrong)
