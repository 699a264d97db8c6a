"""Facts as values: each names the method that takes it in, and has what that is told."""

import gc
import weakref
from inspect import Parameter, signature

import pytest

from policies.facts import FACTS, Interrupted
from policies.scheduler import Scheduler
from policies.types import Cause, Usage


@pytest.mark.interpreted
@pytest.mark.parametrize("name", FACTS)
def test_the_fields_of_a_fact_are_the_parameters_of_its_method(name):
    fields = [field for field in FACTS[name].__dataclass_fields__.values() if field.name != "call"]
    scheduler = Scheduler()
    part, method = FACTS[name].part, "returned" if name == "undelivered" else name
    handler = scheduler if part is None else getattr(scheduler.parts, part)
    parameters = dict(signature(getattr(handler, method)).parameters)
    if name == "finished":
        del parameters["usage"]  # told before it as a fact of its own
    if name == "undelivered":  # as what returns while its backend has refused nothing
        parameters = {each: parameters[each] for each in ("request_id", "now")}
    assert {field.name for field in fields} == parameters.keys()
    for field in fields:
        default = parameters[field.name].default
        assert default in (Parameter.empty, field.default, ()), field.name


def test_told_takes_in_any_fact_as_the_call_of_its_method_does():
    class Told(Scheduler):
        def interrupted(self, request_id, usage, now, hold_s=0.0, cause=Cause.FAILED):
            self.called = request_id, usage, now, hold_s

    scheduler = Told()
    scheduler.told(Interrupted(1.0, "r", Usage(1, 0, 2), 0.5))
    assert scheduler.called == ("r", Usage(1, 0, 2), 1.0, 0.5)


@pytest.mark.interpreted
def test_a_scheduler_that_is_dropped_is_freed_at_once():
    gc.disable()
    try:
        scheduler = Scheduler()
        left = weakref.ref(scheduler)
        del scheduler
        assert left() is None
    finally:
        gc.enable()
