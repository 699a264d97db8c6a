"""merge_patch: the JSON merge patch (RFC 7396) that turns one document into another.

In such a patch null removes a member, so a member whose value becomes null is gone at the receiver: in the live
document, both mean that the value is not known. An object is a Struct or a dict.
"""

import asyncio
from itertools import islice
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

SLICE_MEMBERS: Final = 250  # about a millisecond

Members = dict[str, Any]
Object = Struct | Members
OBJECTS: Final = (Struct, dict)


def members_of(node: Object) -> Members:
    """The members of an object of the document, to read only."""
    return node if isinstance(node, dict) else asdict(node)


def merge_patch(before: Object, after: Object) -> Members:
    """The patch from `before` to `after`; empty where both are equal."""
    before, after = members_of(before), members_of(after)
    if before.keys() == after.keys():  # nearly always: what a tenant or a backend has
        patch: Members = {name: value for name, value in after.items() if value != before[name]}
    else:
        patch = dict.fromkeys(before.keys() - after.keys())
        patch |= {name: value for name, value in after.items() if name not in before or value != before[name]}
    for name, value in patch.items():
        if isinstance(value, OBJECTS) and isinstance(was := before.get(name), OBJECTS):
            patch[name] = merge_patch(was, value)
    return patch


async def sliced_merge_patch(before: Object, after: Object, depth: int) -> Members:
    """As `merge_patch`, with turns of the event loop between the members that are `depth` levels deep."""
    before, after = members_of(before), members_of(after)
    patch: Members = dict.fromkeys(before.keys() - after.keys())
    if not depth:
        members = iter(after.items())
        while part := dict(islice(members, SLICE_MEMBERS)):
            patch |= merge_patch({name: before[name] for name in part if name in before}, part)
            await asyncio.sleep(0)
        return patch
    for name, value in after.items():
        was = before.get(name)
        if isinstance(value, OBJECTS) and isinstance(was, OBJECTS):
            if part := await sliced_merge_patch(was, value, depth - 1):
                patch[name] = part
        elif value != was:
            patch[name] = value
    return patch
