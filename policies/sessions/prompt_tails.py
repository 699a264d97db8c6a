"""Prompt tails: how the prompt of a call that names no session shows which session it continues.

An agent sends its whole history with each turn. So a call whose prompt begins with a whole earlier prompt of its
tenant, and is longer, is the next turn of the session of the earlier call. Prompts are known by chained hashes of their
full blocks, so the hash of the last block, the tail, stands for the whole prompt.

A second call that extends the same first prompt has the same system prompt, or is another branch: it may be the first
call of a session of its own. A first call is in no session, because no later call shows a session yet.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from policies.types import Request

BLOCKS_MIN: Final = 4
"""Blocks of 1,024 bytes, about 1,000 tokens. What is shorter is computed again within a step of 2,048 tokens (vLLM's
smallest default), so nothing is gained by keeping it."""
TENANT_TAILS_MAX: Final = 2_048
"""Of a tenant, of which 512 sessions are known."""
TAILS_MAX: Final = 65_536
"""Of all tenants, at 220 to 600 bytes each. Beyond it, the tenant that has sent nothing for longest loses its own."""
INFERRED: Final = "~"
"""Begins the ids of sessions that prompts tell; ids of named ones are hex digits."""


class Tail(NamedTuple):
    """What is known of an earlier prompt: its `size` (in thousandths of a block) and its session. PromptTails finds it
    by the hash of the prompt's last full block. An empty `session_id`: the prompt's call may be the first of a session.
    `is_spent`: a later prompt has continued that call.
    """

    session_id: str
    size: int = 0
    is_spent: bool = False


class PromptTails:
    """The latest prompts of each tenant. They show whether a call that names no session continues a known session.
    Mutable, of bounded size: a tenant that sends many prompts loses its own oldest ones.
    """

    def __init__(self, tails_max: int = TAILS_MAX, tenant_tails_max: int = TENANT_TAILS_MAX) -> None:
        self._tails_max, self._tenant_tails_max = tails_max, tenant_tails_max
        self._of: OrderedDict[str, OrderedDict[int, Tail]] = OrderedDict()
        self._count = 0

    def session_of(self, request: Request) -> str | None:
        """The id of the session that the request continues; None: its prompt continues no known prompt. The request's
        own prompt is known from now on.
        """
        prefix, size = request.prefix, _size(request)
        tails = self._of.get(request.tenant_id)
        if tails is None:
            tails = self._of[request.tenant_id] = OrderedDict()
        self._of.move_to_end(request.tenant_id)
        if tails.keys().isdisjoint(prefix):
            self._put(tails, prefix[-1], Tail("", size))
            return None
        at = next(block for block in reversed(prefix) if block in tails)
        before = tails[at]
        if at == prefix[-1]:
            return self._same_tail(tails, at, before, size)
        if before.is_spent:
            tails.move_to_end(at)
            self._put(tails, prefix[-1], Tail("", size))
            return None
        session_id = before.session_id
        if not session_id:  # others may begin with it, if it is a system prompt
            session_id = f"{INFERRED}{prefix[-1]:016x}"
            self._put(tails, at, Tail("", before.size, is_spent=True))
        self._put(tails, prefix[-1], Tail(session_id, size))
        return session_id

    def restored(self, tenant_id: str, session_id: str, tail: int) -> None:
        """Add the tail of a session that another ledger knew."""
        self._put(self._of.setdefault(tenant_id, OrderedDict()), tail, Tail(session_id))

    def removed(self, tenant_id: str) -> None:
        """Drop the prompts of a removed tenant."""
        self._count -= len(self._of.pop(tenant_id, ()))

    def _same_tail(self, tails: OrderedDict[int, Tail], at: int, before: Tail, size: int) -> str | None:
        """The session of a prompt that has the full blocks of an earlier one, and no more. In a session, it is the last
        turn again, or the next one if that is longer by less than a block. Else only the system prompt may be the same.
        """
        tails.move_to_end(at)
        if before.is_spent or not before.session_id or size < before.size:
            return None
        tails[at] = Tail(before.session_id, size)
        return before.session_id

    def _put(self, tails: OrderedDict[int, Tail], at: int, tail: Tail) -> None:
        """Know this tail as the latest."""
        self._count += at not in tails
        tails[at] = tail
        tails.move_to_end(at)
        if len(tails) > self._tenant_tails_max:
            tails.popitem(last=False)
            self._count -= 1
        if self._count > self._tails_max:
            tenant_id, oldest = next(iter(self._of.items()))
            oldest.popitem(last=False)
            self._count -= 1
            if not oldest:
                del self._of[tenant_id]


def _size(request: Request) -> int:
    """1/1,000 blocks: as the prompt's bytes, whatever a byte is estimated to be in tokens."""
    block_tokens = request.prefix_block_tokens
    return round(1000.0 * request.prompt_tokens / block_tokens) if block_tokens else request.prompt_tokens
