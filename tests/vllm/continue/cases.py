"""Calls whose answers are compared, cut and whole: as hypothesis draws them."""

from collections.abc import Mapping
from typing import Any

from answers import Answer, ask
from hypothesis import strategies as st
from wire import CHAT, COMPLETIONS

from gateway.continuation.seam import INCOMPLETE_TOKENS_MAX

USAGE = {"stream_options": {"include_usage": True}}
CHUNK_USAGE = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
PROMPTS = ["Once upon", "def f(x):", "\N{GRINNING FACE} h\N{LATIN SMALL LETTER O WITH DIAERESIS}", "1 2 3", "The", "zz"]
BYTES = (176, 257, 250, 226, 131, 106)  # the tokens of the bytes of a face and of an accented letter, one each
BROKEN: Mapping[str, Any] = {"logit_bias": {str(token): 12 for token in BYTES}}
"""Characters of several tokens, whole and broken."""
# What else a call may ask for, and be continued with.
OPTIONS: tuple[Mapping[str, Any], ...] = (
    {},
    {},
    BROKEN,
    {"stream_interval": 4},
    {"repetition_penalty": 1.3},
    {"min_tokens": 12, "logit_bias": {"2": 100}},  # the end, as soon as it may be
    {"stop_token_ids": list(range(300, 900))},
    {"allowed_token_ids": list(range(4, 600))},
    {"skip_special_tokens": False, "logit_bias": {"1": 8}},
    {"cache_salt": "salt", "user": "somebody"},
    CHUNK_USAGE,
)

streams = st.fixed_dictionaries(
    {
        "path": st.sampled_from([CHAT, COMPLETIONS]),
        "prompt": st.sampled_from(PROMPTS),
        "tokens": st.integers(2, 60),
        "cuts": st.lists(st.integers(1, 40), min_size=1, max_size=2),
        "at_the_end": st.booleans(),  # the limit is at the cut, or one or two tokens behind it
        "ids": st.booleans(),
        "ignore_eos": st.booleans(),
        # Where a stop string begins, from the cut on in characters, and its length.
        "stop_at": st.none() | st.tuples(st.integers(-8, 8), st.integers(1, 8)),
        "stop_is_kept": st.booleans(),
        "options": st.sampled_from(OPTIONS),
    }
)


def case(**fields: Any) -> dict[str, Any]:
    """A case with these fields, and otherwise a plain one."""
    plain = {"path": CHAT, "prompt": "Once", "tokens": 12, "cuts": [5], "at_the_end": False, "ids": True}
    return {**plain, "ignore_eos": False, "stop_at": None, "stop_is_kept": False, "options": {}, **fields}


def body_of(case: Mapping[str, Any], stop: str | None = None) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": case["prompt"]}]} if case["path"] == CHAT else {}
    tokens = case["cuts"][0] + case["tokens"] % 3 if case["at_the_end"] else case["tokens"]
    if case["options"] == BROKEN:
        tokens = min(tokens, INCOMPLETE_TOKENS_MAX)  # a longer row of tokens that are no text ends a stream that is cut
    body = {**(prompt or {"prompt": case["prompt"]}), **USAGE, "max_tokens": tokens, "return_token_ids": case["ids"]}
    body |= {"ignore_eos": case["ignore_eos"], **case["options"]}
    if "min_tokens" in body:
        body["min_tokens"] = min(body["min_tokens"], tokens)
    if stop:
        body |= {"stop": [stop, "never this"], "include_stop_str_in_output": case["stop_is_kept"], "ignore_eos": False}
    return body


def answered(url: str, case: Mapping[str, Any]) -> tuple[dict[str, Any], Answer]:
    """The body of a case, with a stop string that will be met where it asks for one, and the answer of this vLLM."""
    body = body_of(case)
    whole = ask(url, case["path"], body)
    if case["stop_at"] is not None and whole.text:
        begins, length = case["stop_at"]
        at = min(max(0, whole.chars_after(case["cuts"][0]) + begins), len(whole.text) - 1)
        body = body_of(case, whole.text[at:][:length])
        whole = ask(url, case["path"], body)
    return body, whole
