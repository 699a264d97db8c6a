"""Call parsing: turns the body of a queued call into a ParsedCall, the facts that the scheduler needs.

Pure: bytes and values in, values out. Three rules:

* Only what scheduling needs is read; every other field passes to the backend unchanged. Fields are read as vLLM reads
  them (values.py), so that no backend runs more than the gateway counted. Of duplicate keys the last one counts, as in
  vLLM.
* A body is forwarded byte for byte, unless a rule of fields.py changes it, or a stream has to ask for usage, without
  which its tokens could not be charged as they pass (bodies.py).
* Errors are BadRequests and never repeat the input. Calls that a backend rejects by itself at no cost (a limit beyond
  its context, no tokens) are left to it, so that the client gets the backend's message.
"""

from dataclasses import dataclass
from typing import Any, Final

from backends.meters import AnswerKind
from gateway.api import fields
from gateway.api.bodies import Body, UpstreamBody
from gateway.api.endpoints import BodyShape, ChargeRule, Endpoint
from gateway.api.errors import BadRequest
from gateway.api.prompts import prefix_hashes
from gateway.api.values import count, flag, integer

MODEL_CHARS_MAX: Final = 512
# A backend searches each of these strings in the text of every token, on a thread that serves all its requests. vLLM
# has its own limits, by default 4 and 128; other servers have none.
STRINGS_MAX: Final = 128
STRING_LISTS: Final = ("stop", "stop_sequences", "bad_words")
_SEQUENCES: Final = frozenset({"n", "best_of"})
LOGPROBS: Final = ("logprobs", "top_logprobs", "prompt_logprobs")
_UNCOUNTED_WORK: Final = frozenset({"use_beam_search", *STRING_LISTS, *LOGPROBS})
_RARE: Final = fields.NAMES_SALTED | _UNCOUNTED_WORK | _SEQUENCES | {"echo", "tools", "return_token_ids"}
"""Most calls have none of these fields: one look instead of one for each."""


CHOICES_MAX: Final = 16  # chosen: of n or best_of; each is a sequence of its own at one backend, from one prompt
PROMPTS_MAX: Final = 128  # chosen: each is a sequence of its own, and all of them are placed at one backend
INPUTS_MAX: Final = 2048  # as many as OpenAI's embeddings take


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The limits on the size of one call. They are on `n` and `best_of`, prompts per call, inputs per call that
    generates nothing, output tokens per choice, and alternatives listed per token (log probabilities). `xargs_allowed`:
    the engine arguments (`vllm_xargs`) that a client may set; None: all but those that only the gateway may set.
    """

    output_tokens_max: int
    logprobs_max: int
    choices_max: int = CHOICES_MAX
    prompts_max: int = PROMPTS_MAX
    inputs_max: int = INPUTS_MAX
    xargs_allowed: frozenset[str] | None = None


@dataclass(slots=True)
class ParsedCall:
    """A call that can be queued, as parsed from its body, before its tokens are counted. It is never changed; a frozen
    dataclass would take three times as long to make, and every call makes one.

    `choices` is the number of sequences (n or best_of, times `prompts`). `output_tokens_max` is the limit of output
    tokens, summed over all of them; None: the call sets no limit; 0: nothing is generated. `prompt_bytes` is the size
    of the prompt text. `prompt_token_ids` is the exact number of prompt tokens if the prompt came as token ids.
    `prefix` has the hashes of the prompt's first blocks, each of `PREFIX_BLOCK_BYTES` bytes.
    """

    stream: bool
    choices: int
    prompts: int
    output_tokens_max: int | None
    client_wants_usage: bool
    client_wants_continuous_usage: bool
    prompt_bytes: int
    prompt_token_ids: int | None
    prefix: tuple[int, ...]
    body: UpstreamBody
    answer: AnswerKind = AnswerKind.CHOICES
    uses_tools: bool = False
    wants_token_ids: bool = False


def parse_call(endpoint: Endpoint, body: Body, limits: CallLimits, *, salt: str | None = None) -> ParsedCall:
    """Parse a call of a queued endpoint. `salt` is the tenant's, if prefix caches are isolated. Raises BadRequest."""
    shape, call = endpoint.shape, body.values
    assert shape is not None, "a queued call has a body"
    stream, is_rare = flag(call, "stream"), not _RARE.isdisjoint(call)
    changes = fields.changes(call, salted=salt is not None, xargs_allowed=limits.xargs_allowed) if is_rare else {}
    if salt is not None and not endpoint.multipart:
        changes[fields.CACHE_SALT] = salt
    wants_usage, wants_continuous, options = False, False, None
    if stream and shape.usage_options:
        wants_usage, wants_continuous, options = body.usage_options()
    generates = endpoint.charge is ChargeRule.USAGE
    if generates and is_rare and not _UNCOUNTED_WORK.isdisjoint(call):
        _check_uncounted_work(call, limits.logprobs_max)
    sequences = _sequences(call, limits) if generates and is_rare and not _SEQUENCES.isdisjoint(call) else 1
    output_tokens = _output_tokens(call, shape, limits.output_tokens_max) if generates else 0
    if generates and is_rare and _only_scores(call, shape):
        output_tokens = 1
    prompt = shape.prompt(call)
    prompts_max = limits.prompts_max if generates else limits.inputs_max
    if prompt.prompts > prompts_max:
        raise BadRequest(f"At most {prompts_max} prompts may be in one call.", param="prompt" if generates else "input")
    choices = sequences * prompt.prompts
    return ParsedCall(
        stream=stream,
        choices=choices,
        prompts=prompt.prompts,
        output_tokens_max=None if output_tokens is None else output_tokens * choices,
        client_wants_usage=wants_usage,
        client_wants_continuous_usage=wants_continuous,
        prompt_bytes=prompt.text_bytes + prompt.repeated_bytes,
        prompt_token_ids=prompt.token_ids,
        prefix=prefix_hashes(prompt, call, salt),
        body=body.upstream(changes, options),
        answer=endpoint.answer,
        uses_tools=is_rare and bool(call.get("tools")),
        wants_token_ids=is_rare and bool(call.get("return_token_ids")),
    )


def prompt_text(endpoint: Endpoint, body: Body) -> str:
    """Return the prompt text of a body that has passed `parse_call`, for a tokenizer. It is not part of ParsedCall,
    which lives as long as its request, because most gateways never need the text.
    """
    assert endpoint.shape is not None, "a queued call has a body"
    return endpoint.shape.prompt(body.values).text.decode(errors="replace")


def model_of(call: dict[str, Any]) -> str | None:
    """The `model` of a call; None where the call names no model. Raises BadRequest."""
    model = call.get("model")
    if model is not None and (type(model) is not str or len(model) > MODEL_CHARS_MAX):
        raise BadRequest(f"'model' must be a string of at most {MODEL_CHARS_MAX} characters.", param="model")
    return model


def _check_uncounted_work(call: dict[str, Any], logprobs_max: int) -> None:
    """Reject options that cost a backend far more than the tokens that it reports."""
    if flag(call, "use_beam_search"):
        # vLLM runs every beam again for every token, and reports the tokens of the best beams alone.
        raise BadRequest("Beam search is not offered here: its work is not counted.", param="use_beam_search")
    for name in STRING_LISTS:
        value = call.get(name)
        if type(value) is list and len(value) > STRINGS_MAX:
            raise BadRequest(f"'{name}' must hold at most {STRINGS_MAX} strings.", param=name)
    for name in LOGPROBS:
        value = call.get(name)
        if type(value) is not str or not value.isalpha():  # "true": a flag of the chat API has one of these names
            count(call, name, logprobs_max)


def _sequences(call: dict[str, Any], limits: CallLimits) -> int:
    return max(count(call, "n", limits.choices_max) or 1, count(call, "best_of", limits.choices_max) or 1)


def _output_tokens(call: dict[str, Any], shape: BodyShape, value_max: int) -> int | None:
    """The output tokens per choice; None for no limit. A limit of 0 is left to the backend."""
    value, is_limited = None, False
    for name in shape.output_fields:
        if name in call and call[name] is not None:
            is_limited, tokens = True, count(call, name, value_max)
            value = tokens if value is None else value
    return value if is_limited else shape.output_tokens_default


def _only_scores(call: dict[str, Any], shape: BodyShape) -> bool:
    """Whether the call scores a prompt: vLLM accepts a limit of 0 with echo, and still decodes one token."""
    return call.get("echo") is True and any(integer(call, name) == 0 for name in shape.output_fields)
