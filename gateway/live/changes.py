"""merge_patch: the JSON merge patch (RFC 7396) that turns one document into another.

In such a patch null removes a member, so a member whose value becomes null is gone at the receiver: for the live
document both mean that nothing is known.
"""

import asyncio
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

SLICE_MEMBERS: Final = 250  # about a millisecond

Document = dict[str, Any]


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> Document:
    """The patch; empty where both are equal."""
    if before.keys() == after.keys():  # nearly always: what a tenant or a backend has
        patch: Document = {name: value for name, value in after.items() if value != before[name]}
    else:
        patch = dict.fromkeys(before.keys() - after.keys())
        patch |= {name: value for name, value in after.items() if name not in before or value != before[name]}
    for name, value in patch.items():
        if isinstance(value, dict) and isinstance(was := before.get(name), dict):
            patch[name] = merge_patch(was, value)
    return patch


async def sliced_merge_patch(before: Mapping[str, Any], after: Mapping[str, Any], depth: int) -> Document:
    """As `merge_patch`, with turns of the event loop between the members that are `depth` levels deep."""
    patch: Document = dict.fromkeys(before.keys() - after.keys())
    if not depth:
        members = iter(after.items())
        while part := dict(islice(members, SLICE_MEMBERS)):
            patch |= merge_patch({name: before[name] for name in part if name in before}, part)
            await asyncio.sleep(0)
        return patch
    for name, value in after.items():
        was = before.get(name)
        if isinstance(value, dict) and isinstance(was, dict):
            if part := await sliced_merge_patch(was, value, depth - 1):
                patch[name] = part
        elif value != was:
            patch[name] = value
    return patch
