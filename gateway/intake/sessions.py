"""Sessions: the agent's session that a call belongs to, its parent, and whether the call is its last.

Clients name sessions in headers and fields of their own; the first of NAMES that a call has counts. A sub-agent is a
session of its own, because it has a context of its own: if a client gives its sub-agents the id of the session that
started them, the session's name includes the sub-agent's own id, and its parent is that session or a sub-agent of it.

The gateway keeps only an HMAC over the tenant and the name, because a session's name may grant access to the session.
So two tenants never share a session, and no log has a session's name. A name only groups calls of one tenant.
"""

import hmac
import json
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from gateway.api.prompts import conversation_start

NAME_CHARS_MAX: Final = 512
USER_CHARS_MAX: Final = 2048
"""Of a `metadata.user_id` that may hold a session's name."""
HEX_CHARS: Final = 16
FINAL: Final = "x-dynamo-session-final"
BEGINNING: Final = "~"
"""Begins what stands for a name."""
PARTS: Final = "/"
"""Between a session and its sub-agent in a name."""

Headers = Mapping[str, str]
Fields = Mapping[str, Any]


class SessionName(NamedTuple):
    """The name of an agent's session, as the client gives it with a call. `parent` is the name of the session that
    started this one. `is_final`: the call is the last one of the session.
    """

    name: str
    parent: str | None = None
    is_final: bool = False


class SessionKey(NamedTuple):
    """The id of an agent's session in the gateway, as found for a call, and the id of its parent (the session that
    started it). An id has 16 hex digits, and differs between tenants. `is_final`: the call is the last one of the
    session.
    """

    id: str
    parent_id: str | None = None
    is_final: bool = False


class Sessions:
    """A finder of the agent's session that a call belongs to. It derives the session's id from its name by an HMAC with
    `secret`.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def of(self, tenant_id: str, headers: Headers, fields: Fields) -> SessionKey | None:
        """The session of a call with these fields. None without a name of 1 to NAME_CHARS_MAX characters."""
        session = session_name(headers, fields)
        if session is None:
            return None
        parent_id = None if session.parent is None else self._id(tenant_id, session.parent)
        return SessionKey(self._id(tenant_id, session.name), parent_id, session.is_final)

    def _id(self, tenant_id: str, name: str) -> str:
        message = f"program {len(tenant_id)} {tenant_id} {name}".encode(errors="surrogateescape")
        return hmac.digest(self._secret, message, "sha256").hex()[:HEX_CHARS]


def session_name(headers: Headers, fields: Fields) -> SessionName | None:
    """The session that a client says a call belongs to. None without a name of 1 to NAME_CHARS_MAX characters; only the
    first name that is given counts.
    """
    for header, read in HEADERS.items():
        if header in headers:
            return _checked(read(headers), headers)
    for field, read_field in FIELDS.items():
        if field in fields:
            found = read_field(fields[field])
            if found is not None:
                return _checked(SessionName(found), headers)
    return None


def beginning_name(fields: Fields) -> str | None:
    """A name for a conversation without one, made from its beginning. Each replica finds the same name at each turn,
    without a memory of earlier turns. None: the call is no conversation.
    """
    start = conversation_start(fields)
    return None if start is None else f"{BEGINNING}{blake2b(start, digest_size=HEX_CHARS // 2).hexdigest()}"


def _checked(session: SessionName, headers: Headers) -> SessionName | None:
    name, parent, _ = session
    if not 0 < len(name) <= NAME_CHARS_MAX:
        return None
    if parent is not None and (not 0 < len(parent) <= NAME_CHARS_MAX or parent == name):
        parent = None
    return SessionName(name, parent, is_final=FINAL in headers and headers[FINAL].strip().lower() == "true")


# -- headers ---------------------------------------------------------------------------------------------------------


def _named_by(header: str, parent: str | None = None) -> Callable[[Headers], SessionName]:
    """The session of a client that names it in one header, and its parent in another."""

    def read(headers: Headers) -> SessionName:
        return SessionName(headers[header], headers.get(parent) if parent else None)

    return read


def _claude_code(headers: Headers) -> SessionName:
    """Claude Code: all agents of a session have its id; only sub-agents have one of their own, and only those that a
    sub-agent has started have a parent's.
    """
    session = headers["x-claude-code-session-id"]
    agent = headers.get("x-claude-code-agent-id")
    if not agent:
        return SessionName(session)
    parent = headers.get("x-claude-code-parent-agent-id")
    return SessionName(f"{session}{PARTS}{agent}", f"{session}{PARTS}{parent}" if parent else session)


def _codex(headers: Headers) -> SessionName:
    """Codex: a session has threads, each of which is an agent; those of sub-agents have a parent."""
    return SessionName(headers.get("thread-id") or headers["session-id"], headers.get("x-codex-parent-thread-id"))


HEADERS: Final[Mapping[str, Callable[[Headers], SessionName]]] = {
    "x-fairlead-program-id": _named_by("x-fairlead-program-id"),
    "x-session-id": _named_by("x-session-id", "x-parent-session-id"),
    "x-claude-code-session-id": _claude_code,
    "session-id": _codex,
    "session_id": _named_by("session_id", "x-codex-parent-thread-id"),  # Codex before it had threads
    "x-session-affinity": _named_by("x-session-affinity", "x-parent-session-id"),
    "x-dynamo-session-id": _named_by("x-dynamo-session-id", "x-dynamo-parent-session-id"),
}
"""By header, in the order in which they count."""


# -- fields ----------------------------------------------------------------------------------------------------------


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _user_session(metadata: object) -> str | None:
    """The session in the `user_id` of Claude Code's metadata: after `_session_`, or in the JSON that newer ones send.
    Another user id names no session.
    """
    user = metadata.get("user_id") if isinstance(metadata, dict) else None
    if not isinstance(user, str) or len(user) > USER_CHARS_MAX:
        return None
    if user.startswith("{"):
        try:
            session = json.loads(user).get("session_id")
        except (ValueError, RecursionError):
            return None
        return _text(session)
    user, mark, session = user.rpartition("_session_")
    return session if mark and user.startswith("user_") else None


def _conversation(value: object) -> str | None:
    """OpenAI's conversation: an id, or an object that has one."""
    return _text(value.get("id")) if isinstance(value, dict) else _text(value)


FIELDS: Final[Mapping[str, Callable[[Any], str | None]]] = {
    "metadata": _user_session,
    "session_id": _text,
    "conversation": _conversation,
    "prompt_cache_key": _text,
}
"""By field, in the order in which they count."""
