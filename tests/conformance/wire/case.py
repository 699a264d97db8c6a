"""What is asked of both servers, and where the gateway is to answer otherwise than vLLM."""

from collections.abc import Callable
from dataclasses import dataclass

from exchange import Ask, Got

Next = Callable[[Got], Ask]
Difference = Callable[[Got, Got], None]
"""Gets vLLM's answer and the gateway's; asserts how they differ."""


@dataclass(frozen=True)
class Case:
    """One request, or several of which each is made from the answer to the one before.

    `server` names what it is sent to: "text", "embed" or "classify". `differs` says that the last answer differs on
    purpose, and exactly how; without it nothing may.
    """

    asks: tuple[Ask | Next, ...]
    server: str = "text"
    differs: Difference | None = None


def same(*asks: Ask | Next, server: str = "text") -> Case:
    return Case(asks, server)


def refused_alike(*asks: Ask | Next, server: str = "text") -> Case:
    """The gateway refuses it too, before vLLM sees it: the same status, in the shape of the API, in its own words.

    vLLM's words repeat what was sent, and of bad JSON it says OpenAI's even to Anthropic's clients.
    """

    def check(theirs: Got, ours: Got) -> None:
        assert ours.status == theirs.status, (ours, theirs)
        assert 400 <= theirs.status < 500
        assert_error_shape(asks[-1], ours)
        assert MARKER.encode() not in ours.body

    return Case(asks, server, check)


def differs(*asks: Ask | Next, theirs: Got | int, ours: Got | int, server: str = "text") -> Case:
    """Both answers are known: by their status, or whole (of the headers, those that are named)."""

    def check(their: Got, our: Got) -> None:
        for wanted, got in ((theirs, their), (ours, our)):
            if isinstance(wanted, int):
                assert got.status == wanted, got
            else:
                assert (got.status, got.body) == (wanted.status, wanted.body)
                assert set(wanted.headers) <= set(got.headers), got.headers

    return Case(asks, server, check)


def not_offered(ask: Ask, *, theirs: int = 200) -> Case:
    """A path of vLLM that is none of the gateway's."""
    return differs(ask, theirs=theirs, ours=Got(404, (), NOT_FOUND))


def assert_error_shape(ask: Ask | Next, got: Got) -> None:
    error = got.json
    if isinstance(ask, Ask) and ask.path.startswith("/v1/messages"):
        assert error.keys() == {"type", "error"}
        assert error["error"].keys() == {"type", "message"}
    else:
        assert error.keys() == {"error"}
        # A word beside the number that vLLM has, and which limit it was, where it was one (docs/api.md).
        assert error["error"].keys() - {"limit"} == {"message", "type", "param", "code", "reason"}


NOT_FOUND = b'{"detail":"Not Found"}'
MARKER = "zebra-marker"  # in what is sent wrong, and never in an answer of the gateway's own
