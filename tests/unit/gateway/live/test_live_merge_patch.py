"""Merge patches of the live document (RFC 7396)."""

import asyncio
import json

from hypothesis import given
from hypothesis import strategies as st
from live_viewer import merged

from gateway.live.stream.changes import merge_patch, sliced_merge_patch

values = st.recursive(
    st.one_of(st.integers(0, 3), st.sampled_from(["a", ""]), st.lists(st.integers(0, 1), max_size=2)),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
    max_leaves=12,
)
documents = st.dictionaries(st.sampled_from("abcd"), values, max_size=4)


@given(documents, documents, st.integers(0, 3))
def test_the_patch_of_two_documents_turns_one_into_the_other(before, after, depth):
    copies = json.dumps([before, after])
    for patch in (merge_patch(before, after), asyncio.run(sliced_merge_patch(before, after, depth))):
        assert merged(before, json.loads(json.dumps(patch))) == after
        assert bool(patch) == (before != after)
    assert json.dumps([before, after]) == copies


def test_a_value_that_is_not_known_any_more_is_null_in_the_patch():
    assert merge_patch({"a": {"x": 1, "y": 2}}, {"a": {"x": None, "y": 2}}) == {"a": {"x": None}}


def test_only_members_that_changed_are_in_the_patch():
    before = {"tenants": {f"t{number}": {"share": [0, 0, 0], "queued": 1} for number in range(1000)}}
    after = json.loads(json.dumps(before))
    after["tenants"]["t7"]["queued"] = 2
    del after["tenants"]["t8"]
    assert asyncio.run(sliced_merge_patch(before, after, 1)) == {"tenants": {"t7": {"queued": 2}, "t8": None}}
