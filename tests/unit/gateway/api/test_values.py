"""Numbers and flags are what pydantic takes for them, as vLLM's own models are read."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from gateway.api.errors import BadRequest
from gateway.api.values import count, flag, integer

VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=True)
    | st.sampled_from(
        ["16", " 16 ", "+16", "-1", "1_000", "16.0", "16.5", "1e3", "", "x", "TRUE", "yes", " yes", "off", "2"]
    )
    | st.text(alphabet="0123456789+-_. eE", max_size=6)
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.text(max_size=2), st.integers(), max_size=2)
)


def by_pydantic(kind: type, value: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return "refused"


def by_us(read: Any, value: Any) -> Any:
    try:
        return read({"x": value}, "x")
    except BadRequest as error:
        return "refused" if error.problem.param == "x" else error.problem.param


@given(VALUES.filter(lambda value: value is not None))
@example("16.")
@example("\u0661")
@example(1e300)
@example("9" * 30)
def test_an_integer_is_what_pydantic_takes_for_one(value):
    ours = by_us(integer, value)
    # What only one of both reads is read by pydantic, and is refused here, never the other way about.
    assert ours == by_pydantic(int, value) or (ours == "refused" and type(value) in (str, float))


@given(VALUES.filter(lambda value: value is not None))
def test_a_flag_is_what_pydantic_takes_for_one(value):
    assert by_us(flag, value) == by_pydantic(bool, value)


def test_what_is_missing_or_null_is_not_set():
    for call in ({}, {"x": None}):
        assert (integer(call, "x"), flag(call, "x"), count(call, "x", 5)) == (None, False, None)


@pytest.mark.parametrize(("value", "counted"), [(1, 1), (5, 5), ("5", 5), (0, None), (True, 1)])
def test_a_count_of_zero_is_the_backends_to_refuse(value, counted):
    assert count({"x": value}, "x", 5) == counted


@pytest.mark.parametrize("value", [6, 10**30, "6", 6.0, -1, "-1", -(10**30)])
def test_a_count_over_its_limit_or_below_zero_is_refused(value):
    with pytest.raises(BadRequest):
        count({"x": value}, "x", 5)
