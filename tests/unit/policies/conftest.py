"""Which pools in miniature (pools.py) a suite runs over."""

from collections.abc import Callable

import pytest
from pools import POOLS, Pool


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Suites marked `every_scheduler` run over a local Scheduler and a shared one, but for tests marked
    `local_scheduler`.
    """
    marks = {mark.name for mark in metafunc.definition.iter_markers()}
    if "make_pool" in metafunc.fixturenames and "every_scheduler" in marks and "local_scheduler" not in marks:
        metafunc.parametrize("make_pool", POOLS, indirect=True)


@pytest.fixture
def make_pool(request: pytest.FixtureRequest) -> Callable[..., Pool]:
    return POOLS[getattr(request, "param", "local")]
