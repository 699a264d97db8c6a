"""How many of its examples a test tries: all in `make test-long`, a tenth in other runs.

What draws at random finds a mistake in its first examples or hardly at all; a run that a developer waits for makes few
of them, and one that takes its time makes all.
"""

SHARE = 10
_tried = {"whole": False}


def try_all(*, whole: bool) -> None:
    """Before tests are collected: whether this run tries all examples."""
    _tried["whole"] = whole


def are_all_tried() -> bool:
    return _tried["whole"]


def examples(count: int) -> int:
    """Of so many examples or seeds, those that this run tries."""
    return count if are_all_tried() else -(-count // SHARE)
