"""Which session a call belongs to: named by its client as agents name theirs, known by a hash."""

import json
import re

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.intake.sessions import NAME_CHARS_MAX, SessionName, Sessions, beginning_name, session_name

SESSIONS = Sessions(b"s" * 32)
NO_SESSION = CIMultiDictProxy(
    CIMultiDict(
        {
            "Host": "localhost",
            "Authorization": "Bearer key",
            "Content-Type": "application/json",
            "Content-Length": "1000",
            "User-Agent": "OpenAI/Python 1.99",
            "Accept": "application/json",
            "X-Stainless-Lang": "python",
            "Accept-Encoding": "gzip",
        }
    )
)
CHAT = {"model": "m", "messages": [], "stream": True, "max_tokens": 100}

# As the clients' published sources send them, and Dynamo's and aiperf's documentation says.
CLAUDE = {
    "user-agent": "claude-cli/2.1.0 (external, cli)",
    "x-app": "cli",
    "anthropic-version": "2023-06-01",
    "X-Claude-Code-Session-Id": "c1c1c149-1abe-45f3-8572-fd77aa046232",
}
CLAUDE_AGENT = {**CLAUDE, "X-Claude-Code-Agent-Id": "agent_01ABC"}
CLAUDE_NESTED = {**CLAUDE, "X-Claude-Code-Agent-Id": "agent_02", "X-Claude-Code-Parent-Agent-Id": "agent_01ABC"}
CODEX = {
    "originator": "codex_cli_rs",
    "user-agent": "codex_cli_rs/0.140.0",
    "session-id": "0199a213-81c0-7800-8aa1-bbab2a035a53",
    "thread-id": "0199a213-81c0-7800-8aa1-bbab2a035a53",
    "x-codex-window-id": "0199a213-81c0-7800-8aa1-bbab2a035a53:0",
}
CODEX_CHILD = {
    **CODEX,
    "thread-id": "0199a214-0000-7800-8aa1-bbab2a035a53",
    "x-codex-parent-thread-id": "0199a213-81c0-7800-8aa1-bbab2a035a53",
    "x-openai-subagent": "collab_spawn",
}
OPENCODE = {"User-Agent": "opencode/1.2.0", "x-session-affinity": "ses_b", "X-Session-Id": "ses_b"}
DYNAMO = {"X-Dynamo-Session-ID": "run-42:researcher"}
USER = "user_" + "a1b2c3d4" * 8
LEGACY_USER = f"{USER}_account__session_123e4567-e89b-12d3-a456-426614174000"
JSON_USER = json.dumps(
    {"device_id": "f" * 64, "account_uuid": "", "session_id": "2c4e1cf0-7a67-4d2e-9a4b-1d16d3f44752"}
)


def named(headers=(), fields=()):
    return session_name(CIMultiDict(headers), dict(fields))


def key(headers=(), fields=(), tenant_id="alice", sessions=SESSIONS):
    found = sessions.of(tenant_id, CIMultiDict(headers), dict(fields))
    return None if found is None else found.id


@pytest.mark.parametrize(
    ("headers", "fields", "expected"),
    [
        (CLAUDE, {}, SessionName("c1c1c149-1abe-45f3-8572-fd77aa046232")),
        (
            CLAUDE_AGENT,
            {},
            SessionName("c1c1c149-1abe-45f3-8572-fd77aa046232/agent_01ABC", "c1c1c149-1abe-45f3-8572-fd77aa046232"),
        ),
        (
            CLAUDE_NESTED,
            {},
            SessionName(
                "c1c1c149-1abe-45f3-8572-fd77aa046232/agent_02", "c1c1c149-1abe-45f3-8572-fd77aa046232/agent_01ABC"
            ),
        ),
        ({}, {"metadata": {"user_id": LEGACY_USER}}, SessionName("123e4567-e89b-12d3-a456-426614174000")),
        ({}, {"metadata": {"user_id": JSON_USER}}, SessionName("2c4e1cf0-7a67-4d2e-9a4b-1d16d3f44752")),
        (CODEX, {}, SessionName("0199a213-81c0-7800-8aa1-bbab2a035a53")),
        (
            CODEX_CHILD,
            {},
            SessionName("0199a214-0000-7800-8aa1-bbab2a035a53", "0199a213-81c0-7800-8aa1-bbab2a035a53"),
        ),
        ({"session_id": "5f0c", "originator": "codex_cli_rs"}, {}, SessionName("5f0c")),
        (OPENCODE, {}, SessionName("ses_b")),
        ({**OPENCODE, "x-parent-session-id": "ses_a"}, {}, SessionName("ses_b", "ses_a")),
        ({"x-session-affinity": "ses_b", "x-parent-session-id": "ses_a"}, {}, SessionName("ses_b", "ses_a")),
        (DYNAMO, {}, SessionName("run-42:researcher")),
        (
            {**DYNAMO, "X-Dynamo-Parent-Session-ID": "run-42", "X-Dynamo-Session-Final": "true"},
            {},
            SessionName("run-42:researcher", "run-42", is_final=True),
        ),
        ({**CLAUDE, "x-dynamo-session-final": "false"}, {}, SessionName(CLAUDE["X-Claude-Code-Session-Id"])),
        ({}, {"session_id": "s"}, SessionName("s")),
        ({}, {"conversation": "conv_1"}, SessionName("conv_1")),
        ({}, {"conversation": {"id": "conv_1"}}, SessionName("conv_1")),
        ({}, {"prompt_cache_key": "k"}, SessionName("k")),
        (NO_SESSION, CHAT, None),
        ({}, {"metadata": {"user_id": "u1"}}, None),
        ({}, {"metadata": {"user_id": "someone_session_x"}}, None),
        ({}, {"metadata": {"user_id": "{" * 100_000}}, None),
        ({}, {"metadata": {"user_id": "[" * 2000}}, None),
        ({}, {"metadata": {"user_id": '{"session_id": 7}'}}, None),
        ({}, {"metadata": None, "session_id": None, "conversation": None, "prompt_cache_key": None}, None),
    ],
)
def test_a_session_is_named_as_its_client_names_it(headers, fields, expected):
    assert named(headers, fields) == expected


def test_the_first_name_in_order_counts():
    order = [
        ({"x-fairlead-program-id": "a"}, {}),
        ({"x-session-id": "b"}, {}),
        ({"x-claude-code-session-id": "c"}, {}),
        ({"session-id": "d"}, {}),
        ({"session_id": "e"}, {}),
        ({"x-session-affinity": "f"}, {}),
        ({"x-dynamo-session-id": "g"}, {}),
        ({}, {"metadata": {"user_id": "user_x_session_h"}}),
        ({}, {"session_id": "i"}),
        ({}, {"conversation": "j"}),
        ({}, {"prompt_cache_key": "k"}),
    ]
    headers, fields = {}, {}
    for more_headers, more_fields in reversed(order):
        headers, fields = {**more_headers, **headers}, {**more_fields, **fields}
        assert named(headers, fields) == named(more_headers, more_fields)


def test_a_session_is_no_parent_of_itself():
    assert named({"x-dynamo-session-id": "a", "x-dynamo-parent-session-id": "a"}) == SessionName("a")


def test_a_name_is_the_same_session_however_it_was_given():
    assert key({"x-fairlead-program-id": "a"}) == key({"x-session-id": "a"}) == key({}, {"session_id": "a"})


def test_a_parent_is_known_by_the_id_that_its_own_calls_have():
    child = SESSIONS.of("alice", CIMultiDict(CLAUDE_AGENT), {})
    assert child.parent_id == key(CLAUDE)


def test_nothing_of_a_name_can_be_read_from_its_session():
    found = key({"x-session-id": "session-token-0123456789"})
    assert re.fullmatch("[0-9a-f]{16}", found)
    assert found != key({"x-session-id": "session-token-0123456789"}, sessions=Sessions(b"t" * 32))


def test_two_tenants_have_no_session_in_common():
    pairs = [("alice", "x"), ("bob", "x"), ("a", "b c"), ("a b", "c"), ("1 a", "b")]
    assert len({key({"x-session-id": name}, tenant_id=tenant) for tenant, name in pairs}) == len(pairs)


@pytest.mark.parametrize("value", ["", "x" * (NAME_CHARS_MAX + 1), 7, ["a"], {"a": 1}, True])
def test_what_is_no_name_names_no_session(value):
    assert key({}, {"session_id": value}) is None


def test_a_name_of_odd_bytes_is_a_name():
    assert key({"x-session-id": "\udcff\u00e9"}) is not None


SYSTEM = {"role": "system", "content": "You are an agent."}


def user(text, **block):
    return {"role": "user", "content": [{"type": "text", "text": text, **block}] if block else text}


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (
            {"messages": [SYSTEM, user("fix it")]},
            {"messages": [SYSTEM, user("fix it"), {"role": "assistant"}, user("more")]},
        ),
        ({"messages": [user("fix it")], "tools": [1]}, {"messages": [user("fix it"), user("more")], "tools": []}),
        (  # Anthropic's clients move the mark of what to cache
            {"system": "s", "messages": [user("fix it", cache_control={"type": "ephemeral"})]},
            {"system": "s", "messages": [user("fix it", id=1), user("more", cache_control={"type": "ephemeral"})]},
        ),
        (
            {"instructions": "i", "input": [user("fix it")]},
            {"instructions": "i", "input": [user("fix it"), {"type": "x"}]},
        ),
    ],
)
def test_a_conversation_without_a_name_is_known_by_its_beginning(first, later):
    assert beginning_name(first) == beginning_name(later) is not None
    assert beginning_name({**later, "messages": [SYSTEM, user("other")], "input": [user("other")]}) not in {
        beginning_name(first),
        None,
    }
    assert beginning_name(first | {"system": "another", "instructions": "another"}) != beginning_name(first)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt": "p"},
        {"input": "text"},
        {"messages": []},
        {"messages": [SYSTEM]},
        {"messages": 7},
        {"messages": [7, None, [[]]]},
    ],
)
def test_what_is_no_conversation_has_no_beginning(fields):
    assert beginning_name(fields) is None
