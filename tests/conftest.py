"""For all tests: what Hypothesis may not take as a failure on a machine that is busy with something else, how many
examples it makes, what is left out where the policies are compiled, and `figure`, by which a test of one of the 64
checks says what it measured. A test that configures logging leaves no trace of it.

No garbage is collected while tests are: thousands of them are made and none is dropped, so that the collector looks at
all of them again and again and frees nothing (of 8.3 s of CPU, for each worker, 3.2). Nor does it look at them later.
"""

import gc
import logging
from functools import cache
from importlib import import_module

import pytest
import typer.main
import typer.testing
from hypothesis import HealthCheck, settings

from gateway.observability.logs import OURS
from policies import scheduler
from tests.calm.figures import figure  # noqa: F401 - a fixture
from tests.examples import are_all_tried, examples, try_all

# What is imported when it is used first: 5 s of CPU, for each worker that does so after it was forked.
LATER = ("openai.resources", "gateway.simulate.report.plots", "rich.markdown", "rich.progress", "rich.table")

gc.disable()

# `fairlead` makes its commands once, since a process runs one; these processes run hundreds.
typer.testing._get_command = cache(typer.testing._get_command)
typer.main.get_group = cache(typer.main.get_group)


def pytest_collection_finish(session):
    if session.config.getoption("workers", 0):
        for name in LATER:
            import_module(name)
    gc.freeze()
    gc.enable()


def pytest_configure(config):
    try_all(whole="not long" not in config.option.markexpr)
    patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("fairlead", patient, max_examples=examples(settings.default.max_examples))
    settings.load_profile("fairlead")


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what -m does not name
def pytest_collection_modifyitems(items):
    if are_all_tried():
        for item in items:
            if getattr(getattr(item, "obj", None), "is_hypothesis_test", False) or item.get_closest_marker("drawn"):
                item.add_marker("long")
    if scheduler.__file__.endswith(".so"):
        for item in items:
            if item.get_closest_marker("interpreted"):
                item.add_marker(pytest.mark.skip("the policies are compiled"))


@pytest.fixture(autouse=True)
def _logging_as_it_was():
    loggers = [logging.getLogger(name) for name in ("", *OURS)]
    before = [(logger, logger.level, logger.handlers[:]) for logger in loggers]
    yield
    for logger, level, handlers in before:
        if logger.level != level:  # to set it clears a cache of each of the hundreds of loggers
            logger.setLevel(level)
        logger.handlers[:] = handlers
