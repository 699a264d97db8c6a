"""Completions: prompts as text, as token ids, and lists of either."""

from case import Case, same
from cases_chat import SCHEMA, USAGES
from exchange import post

PATH = "/v1/completions"
BASE = {"model": "tiny", "prompt": "import os", "temperature": 0, "max_tokens": 4}
OPTIONS = {
    "plain": {},
    "token ids": {"prompt": [5, 6, 7], "return_token_ids": True},
    "two prompts": {"prompt": ["a", "b b"]},
    "two prompts of token ids": {"prompt": [[5, 6], [7, 8, 9]], "return_token_ids": True},
    "one prompt in a list": {"prompt": ["a"]},
    "two choices of two prompts": {"prompt": ["a", "b"], "n": 2, "seed": 3, "temperature": 1.0},
    "echo": {"echo": True},
    "echo of token ids": {"echo": True, "prompt": [5, 6, 7], "return_token_ids": True},
    "echo with log probabilities": {"echo": True, "logprobs": 2},
    "echo alone": {"echo": True, "max_tokens": 0, "logprobs": 1},
    "log probabilities": {"logprobs": 2},
    "log probability of the token alone": {"logprobs": 0},
    "stop": {"stop": ["o", "e"], "max_tokens": 40},
    "no limit": {"max_tokens": None},
    "end of sequence": {"logit_bias": {"2": 100}},
    "halves of characters": {"logit_bias": {str(token): 100 for token in range(132, 196)}, "max_tokens": 9},
    "not ASCII": {"prompt": "häß 漢字 🎉"},
    "truncated prompt": {"prompt": list(range(100, 300)), "truncate_prompt_tokens": 20, "return_token_ids": True},
    "a JSON schema": {"structured_outputs": {"json": SCHEMA}, "max_tokens": 40},
    "suffix": {"suffix": None},
    "unknown fields": {"zebra": 1},
    "best of": {"best_of": 1},
}

CASES: dict[str, Case] = {}
for name, fields in OPTIONS.items():
    CASES[f"completions: {name}"] = same(post(PATH, {**BASE, **fields}))
    CASES[f"completions, streamed: {name}"] = same(post(PATH, {**BASE, **fields, "stream": True}))
for name, options in USAGES.items():
    CASES[f"completions, streamed: {name}"] = same(post(PATH, {**BASE, "stream": True, "stream_options": options}))
CASES |= {
    "completions, streamed: usage of two prompts": same(
        post(PATH, {**BASE, "prompt": ["a", "b b"], "stream": True, "stream_options": {"include_usage": True}})
    ),
    "completions: long answer": same(post(PATH, {**BASE, "max_tokens": 600, "ignore_eos": True})),
    "completions: up to the end of the context": same(
        post(PATH, {**BASE, "prompt": [7] * 4000, "max_tokens": 4096, "ignore_eos": True})
    ),
    "completions: a request id": same(post(PATH, BASE, x_request_id="my-id.2")),
}
