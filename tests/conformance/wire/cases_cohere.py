"""Cohere's paths as vLLM has them: /v2/embed, and its chat (v2), whole and streamed.

vLLM serves the chat where the package `cohere` is installed beside it (tests/vllm/install.sh) and
VLLM_ENABLE_COHERE_API is set.
"""

from case import Case, same
from exchange import Got, post

EMBED = "/v2/embed"
CHAT = "/cohere/v2/chat"
TEXTS = {"model": "tiny", "texts": ["hello", "a b c"]}
HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "temperature": 0, "max_tokens": 6}
EMBEDS = {
    "texts": {},
    "texts for what the model has no task": {"input_type": "search_document"},
    "texts in two forms": {"embedding_types": ["float", "base64"]},
    "one long text, truncated": {"texts": ["a " * 5000], "truncate": "END"},
    "one long text": {"texts": ["a " * 5000], "truncate": "NONE"},
    "inputs": {"texts": None, "inputs": [{"content": [{"type": "text", "text": "hello"}]}]},
    "nothing": {"texts": []},
    "texts and inputs": {"inputs": [{"content": [{"type": "text", "text": "hello"}]}]},
    "no model": {"model": None},
}
CHATS = {
    "plain": {},
    "a conversation": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "How is it?"}]},
            {"role": "assistant", "content": "Fine."},
            {"role": "user", "content": "And now?"},
        ]
    },
    "stop sequences": {"stop_sequences": ["o", "e"], "max_tokens": 40},
    "sampled with a seed": {"temperature": 1.0, "seed": 11, "p": 0.9, "k": 40},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.5},
    "log probabilities": {"logprobs": True},
    "not ASCII": {"messages": [{"role": "user", "content": "häß 漢字 🎉 \u2028"}], "max_tokens": 12},
    "unknown fields": {"zebra": {"a": [1, {"b": None}]}},
}


def check_both_answer(theirs: Got, ours: Got) -> None:
    """Or both would be compared for saying that there is no such path."""
    assert (theirs.status, ours.status) == (200, 200), (theirs, ours)


CASES: dict[str, Case] = {
    "Cohere's embeddings are there": Case((post(EMBED, TEXTS),), "embed", check_both_answer),
    "Cohere's chat is there": Case((post(CHAT, HELLO),), differs=check_both_answer),
    "Cohere's streamed chat is there": Case((post(CHAT, {**HELLO, "stream": True}),), differs=check_both_answer),
}
for name, fields in EMBEDS.items():
    for server in ("text", "embed"):
        CASES[f"Cohere's embeddings, {name}, of a server for {server}"] = same(
            post(EMBED, {**TEXTS, **fields}), server=server
        )
for name, fields in CHATS.items():
    for stream in (False, True):
        CASES[f"Cohere's chat, {name}{', streamed' if stream else ''}"] = same(
            post(CHAT, {**HELLO, **fields, "stream": stream})
        )
