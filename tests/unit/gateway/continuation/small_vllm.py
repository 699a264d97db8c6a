"""What a vLLM answers, as arithmetic: the next token follows from the tokens before it, whether prompt or output. With
a temperature it follows from the seed, too.

Tokens are bytes, so that most characters beyond ASCII have several, and some pairs of letters. Decoding, stop strings
and events are as in vLLM 0.32: a token without a whole character has no text, a decoder that begins inside a character
returns everything from the beginning, and with stop strings the last characters are held back.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from hashlib import blake2b
from typing import Any

PAIRS = ("he", "in", "er", ", ", "\n\n", "st")
EOS = 256
FIRST_PAIR = 257
BOX = FIRST_PAIR + len(PAIRS)  # a special token that ends nothing
SPECIAL = {EOS: "<|>", BOX: "<#>"}
UNKNOWN = "\N{REPLACEMENT CHARACTER}"
# What a model of this size likes to say.
WORDS = [*b"aeinot stop\n", *range(FIRST_PAIR, FIRST_PAIR + len(PAIRS))]
LETTER = "\N{GRINNING FACE}".encode()
BYTES = LETTER + "\N{LATIN SMALL LETTER O WITH DIAERESIS}".encode()
BROKEN = {str(byte): 12 for byte in BYTES}
"""A bias for bytes, in any order."""
CORRECTED_BY = 4  # tokens before one, with which vLLM looks for its name
FINGERPRINT = "vllm-small"


def bytes_of(token: int, *, skips_special: bool = True) -> bytes:
    if token in SPECIAL:
        return b"" if skips_special else SPECIAL[token].encode()
    return bytes([token]) if token < EOS else PAIRS[token - FIRST_PAIR].encode()


def decode(tokens: list[int], *, skips_special: bool = True) -> str:
    return b"".join(bytes_of(token, skips_special=skips_special) for token in tokens).decode(errors="replace")


def next_token(context: list[int], bias: Collection[str] = ()) -> int:
    """The likeliest token: mostly a letter or a pair, sometimes the next byte of a long character, rarely the end.

    Special tokens and bytes that may be no text come where there is a bias for them.
    """
    digest = blake2b(repr(context).encode(), digest_size=2).digest()
    if BROKEN.keys() <= set(bias) and digest[0] < 120:
        return BYTES[digest[1] % len(BYTES)]
    for known in range(1, len(LETTER)):
        if context[-known:] == list(LETTER[:known]):
            return LETTER[known]
    if digest[0] < 40:
        return LETTER[0]
    if str(BOX) in bias and digest[0] < 90:
        return BOX
    return EOS if digest[0] > 252 else WORDS[digest[1] % len(WORDS)]


class Decoder:
    """As DecodeStream: text of a token once no character is incomplete, whatever has come before."""

    def __init__(self, prompt: list[int], *, skips_special: bool = True) -> None:
        self._tokens = list(prompt)
        self._skips_special = skips_special
        text = decode(self._tokens, skips_special=skips_special)
        self._decoded = 0 if text.endswith(UNKNOWN) else len(text)

    def step(self, token: int) -> str:
        self._tokens.append(token)
        text = decode(self._tokens, skips_special=self._skips_special)
        if text.endswith(UNKNOWN) or len(text) <= self._decoded:
            return ""
        new, self._decoded = text[self._decoded :], len(text)
        return new


def name(tokens: list[int]) -> str:
    """The name of the last token in log probabilities (v1/engine/logprobs.py): its text, or, where that ends inside a
    character, the text that it completes together with tokens before it.
    """
    *before, token = tokens
    text = decode([token], skips_special=False)
    if not text.endswith(UNKNOWN):
        return text
    for number in range(1, 1 + min(len(before), CORRECTED_BY)):
        context = before[-number:]
        text = decode([*context, token], skips_special=False)
        if not text.endswith(UNKNOWN):
            while context and decode(context[-1:], skips_special=False).endswith(UNKNOWN):
                context.pop()
            return text.removeprefix(decode(context, skips_special=False))
    return ""


class SmallVllm:
    """Answers the calls of one gateway. `asked` are the calls besides generation: their paths and bodies."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Mapping[str, Any]]] = []

    async def ask(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked.append((path, body))
        if path == "/tokenize":
            return {"tokens": [*body["prompt"].encode(), *([EOS] if body["add_special_tokens"] else ())]}
        if path == "/detokenize":
            return {"prompt": decode(body["tokens"], skips_special=False)}
        (token,) = body["allowed_token_ids"]
        decoder = Decoder(body["prompt"], skips_special=body.get("skip_special_tokens", True))
        return {"choices": [{"text": decoder.step(token)}]}

    def stream(self, path: str, body: Mapping[str, Any], merges: int = 1) -> Iterator[bytes]:
        """The events of a call; `merges` tokens share one."""
        chat = path.endswith("chat/completions")
        prompt = list(json.dumps(body["messages"]).encode()) if chat else _prompt(body["prompt"])
        head = {
            "id": "chatcmpl-1" if chat else "cmpl-1",
            "object": "chat.completion.chunk" if chat else "text_completion",
        }
        head |= {"created": 1, "model": "small"}
        shows, options = body.get("return_token_ids"), body.get("stream_options") or {}
        usage, each = options.get("include_usage"), options.get("continuous_usage_stats")
        limit = body.get("max_tokens") or (100 if chat else 16)

        def counts(tokens: int) -> dict[str, Any]:
            return {"prompt_tokens": len(prompt), "total_tokens": len(prompt) + tokens, "completion_tokens": tokens}

        if chat:
            delta = {"role": "assistant", "content": ""}
            first = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
            told = {"usage": counts(0) | {"completion_tokens_details": None}} if each else {}
            yield _event({**head, "choices": [first], **told, "prompt_token_ids": prompt if shows else None})
        tokens = offset = 0
        for number, (text, ids, texts, finish, reason) in enumerate(_generate(prompt, body, limit, merges)):
            tokens, offset = tokens + len(ids), offset + sum(map(len, texts))
            shown = ids if shows else None
            logprobs = _logprobs(texts, offset) if body.get("logprobs") is not None and not chat else None
            if chat:
                choice = {"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": finish}
                choice |= {"stop_reason": reason} if finish else {}
                told = {"usage": counts(tokens) | {"completion_tokens_details": None}} if each else {}
            else:
                choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}
                choice |= {"stop_reason": reason, "prompt_token_ids": prompt if shows and not number else None}
                told = {"usage": counts(tokens)} if each else {}
            end = {"system_fingerprint": FINGERPRINT} if finish and not usage else {}
            yield _event({**head, "choices": [{**choice, "token_ids": shown}], **told, **end})
        if usage:
            yield _event({**head, "choices": [], "usage": counts(tokens), "system_fingerprint": FINGERPRINT})
        yield b"data: [DONE]\n\n"


Piece = tuple[str, list[int], list[str], str | None, str | int | None]


def _generate(prompt: list[int], body: Mapping[str, Any], limit: int, merges: int) -> Iterator[Piece]:
    """Events of so many tokens: text, ids, the text of each token, finish reason, stop reason."""
    text, ids, texts = "", [], []
    for sent, token, decoded, finish, reason in _tokens(prompt, body, limit):
        text, ids, texts = text + sent, [*ids, token], [*texts, decoded]
        if finish or len(ids) >= merges:
            yield text, ids, texts, finish, reason
            text, ids, texts = "", [], []


def _tokens(
    prompt: list[int], body: Mapping[str, Any], limit: int
) -> Iterator[tuple[str, int, str, str | None, str | int | None]]:
    """Tokens: the text that is sent with each, its id, its own text, finish reason, stop reason."""
    stop = body.get("stop") or ()
    stops = [stop] if isinstance(stop, str) else list(stop)
    included, tokens_min = bool(body.get("include_stop_str_in_output")), body.get("min_tokens") or 0
    stop_tokens = body.get("stop_token_ids") or ()
    held_back = 0 if included or not stops else max(map(len, stops)) - 1
    decoder = Decoder(prompt, skips_special=body.get("skip_special_tokens", True))
    context, text, sent = list(prompt), "", 0
    drawn = [body["seed"]] if body.get("temperature") else []
    for number in range(1, limit + 1):
        token = next_token([*drawn, *context], body.get("logit_bias") or ())
        if token in (EOS, *stop_tokens) and number <= tokens_min:
            token = ord("!")
        is_end = token in stop_tokens or (token == EOS and not body.get("ignore_eos"))
        context.append(token)
        before, finish, reason = len(text), None, None
        decoded = name(context[len(prompt) :])  # log probabilities know nothing of the prompt
        text += "" if is_end and not included else decoder.step(token)
        ends = [(at + len(each), each) for each in stops if (at := _found(text, each, before)) >= 0]
        if is_end:
            finish, reason = "stop", None if token == EOS else token
        if ends and number > tokens_min:
            end, reason = min(ends, key=lambda each: each[0])
            finish, text = "stop", text[: end if included else end - len(reason)]
        elif number == limit:
            finish = finish or "length"
        upto = len(text) if finish else max(sent, len(text) - held_back)
        yield text[sent:upto], token, decoded, finish, reason
        sent = upto
        if finish:
            return


def _found(text: str, stop: str, before: int) -> int:
    """Where a stop string ends in the characters after the first `before`."""
    return next((at for at in range(len(text)) if text.startswith(stop, at) and at + len(stop) > before), -1)


def _logprobs(texts: list[str], offset: int) -> dict[str, Any]:
    """`offset`: where these texts end."""
    return {
        "text_offset": [offset - sum(map(len, texts[number:])) for number in range(len(texts))],
        "token_logprobs": [-0.5] * len(texts),
        "tokens": texts,
        "top_logprobs": [{each: -0.5} for each in texts],
    }


def _prompt(prompt: Any) -> list[int]:
    return list(prompt.encode()) if isinstance(prompt, str) else prompt


def _event(message: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"
