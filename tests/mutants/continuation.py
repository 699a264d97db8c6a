"""Do the tests notice when a mechanism of continuing streams is missing? Takes them out of a copy, one at a time.

    python -m tests.mutants.continuation [--list] [TEXT ...]

Each mutant is one mechanism taken out: a text of a source file that another one replaces. Short tests, none of which
needs a vLLM, run with it and have to fail. The exit code is 1 where a mutant survives.
"""

import sys

from tests.mutants.sources import Mutant, run_chosen

UNIT = "tests/unit/gateway/continuation"
CONTINUED, BODIES, EXCLUSIONS, SEAM, STOPS, TEXTS = (
    f"{UNIT}/test_{name}.py" for name in ("continued", "bodies", "exclusions", "seam", "stops", "token_texts")
)
FIRST = f"{UNIT}/test_first_events.py"
METERS = "tests/unit/backends/meters/test_token_ids.py"
GATEWAY = "tests/integration/gateway/test_gateway_continuation.py"
LOSSES = "tests/integration/gateway/test_gateway_loss_limits.py"
EVIDENCE = "tests/unit/gateway/continuation/test_loss_evidence.py"
POLICY = "tests/unit/policies/test_interruption.py"

MUTANTS = (
    # What the next backend is asked for.
    Mutant(
        "an answer may have what is left of its limit", "gateway/continuation/body.py",
        "max(1, limit - outputs)", "limit", (BODIES,),
    ),
    Mutant(
        "an answer has to have what is left of its least tokens", "gateway/continuation/body.py",
        "max(0, tokens_min - outputs)", "tokens_min", (BODIES,),
    ),
    Mutant(
        "a seed moves on", "gateway/continuation/body.py",
        "(seed + outputs) % SEED_MAX", "seed", (BODIES,),
    ),
    Mutant(
        "numbers are read as vLLM reads them", "gateway/continuation/body.py",
        'integer(call, "seed")', 'call.get("seed")', (BODIES,),
    ),
    Mutant(
        "no stop strings are sent", "gateway/continuation/body.py",
        '"echo", "stop", "n"', '"echo", "n"', (BODIES,),
    ),
    Mutant(
        "a chat without a limit ends with its context", "gateway/continuation/body.py",
        "return context_tokens_max - ids.prompt_tokens", "return context_tokens_max", (BODIES,),
    ),
    Mutant(
        "what was generated is a part of the prompt", "gateway/continuation/body.py",
        "filter(None, (ids.prompt, output))", "filter(None, (ids.prompt, ))", (BODIES,),
    ),
    Mutant(
        "a question has the salt of its call", "gateway/continuation/body.py",
        '("skip_special_tokens", "cache_salt")', '("skip_special_tokens",)', (CONTINUED,),
    ),
    # Where the text goes on.
    Mutant(
        "an incomplete character is looked for", "gateway/continuation/seam.py",
        "while whole_text.endswith(INCOMPLETE):", "while False:", (CONTINUED,),
    ),
    Mutant(
        "text that was decoded before is skipped", "gateway/continuation/continued.py",
        "text, self._skip = text[self._skip :], max(0, self._skip - len(text))", "pass", (CONTINUED,),
    ),
    Mutant(
        "the text before is checked", "gateway/continuation/seam.py",
        "    _check(whole_text, shown, is_whole=whole == len(ids))\n", "", (CONTINUED,),
    ),
    Mutant(
        "an event of several tokens may end inside a character", "gateway/continuation/prepare.py",
        "return bool(self.text) and self.tokens == 1", "return bool(self.text)", (CONTINUED,),
    ),
    Mutant(
        "the last characters are held back", "gateway/continuation/stops.py",
        "self._holds_back = 0 if is_included else self.lookback", "self._holds_back = 0", (CONTINUED,),
    ),
    Mutant(
        "a stop string may begin before the seam", "gateway/continuation/prepare.py",
        "before=seam.before,", 'before="",', (CONTINUED,),
    ),
    Mutant(
        "of several the one that ends first counts", "gateway/continuation/stops.py",
        "if 0 <= at < first_end - len(stop):", "if 0 <= at:", (STOPS,),
    ),
    Mutant(
        "none counts before the least tokens", "gateway/continuation/stops.py",
        "if self._tokens > self._tokens_min else (None, 0)", "if True else (None, 0)", (CONTINUED,),
    ),
    Mutant(
        "a backend whose answer a stop string has ended is left", "gateway/continuation/continued.py",
        'raise AnswerComplete("the answer is complete")', 'return b""', (CONTINUED,),
    ),
    Mutant(
        "text of bytes that are none counts with the next whole character", "gateway/continuation/token_texts.py",
        "self._is_inside, start = end == start, end", "self._is_inside, start = False, end", (TEXTS,),
    ),
    Mutant(
        "tokens before the seam are a part of a character", "gateway/continuation/seam.py",
        "cut_tokens += len(whole_text) == len(text)", "pass", (SEAM,),
    ),
    Mutant(
        "a token without a name may end the character in which the seam is", "gateway/continuation/token_texts.py",
        "return min(max(missing, 1), nameless) - 1", "return None", (TEXTS,),
    ),
    Mutant(
        "a token that ends the answer has no text", "gateway/continuation/continued.py",
        'names[-1] = ""', "pass", (CONTINUED,),
    ),
    Mutant(
        "the token that ends a character has its name", "gateway/continuation/token_texts.py",
        "if self._cut_chars and not name and not self._is_hidden:", "if False:", (CONTINUED,),
    ),
    Mutant(
        "tokens that are named by their ids stay so", "gateway/continuation/continued.py",
        "if self._names_ids:", "if False:", (CONTINUED,),
    ),
    Mutant(
        "completions whose tokens are named by their ids are excluded", "gateway/continuation/stream.py",
        "elif _TOKEN_NAME.search(first) is not None:", "elif False:", (EXCLUSIONS,),
    ),
    # What the client is sent.
    Mutant(
        "the head is that of the first event", "gateway/continuation/continued.py",
        'message = {**self._head, "choices"', 'message = {**self._head, "created": 0, "choices"', (CONTINUED,),
    ),
    Mutant(
        "ids are cut out of what goes on", "gateway/continuation/continued.py",
        "shown = token_ids if self._wanted.token_ids else None", "shown = token_ids", (CONTINUED,),
    ),
    Mutant(
        "ids are cut out of what begins", "backends/meters/token_ids.py",
        'return b"" if before.endswith(_EMPTY) else before + client_end', "return data", (METERS,),
    ),
    Mutant(
        "an event without text is not passed on", "backends/meters/token_ids.py",
        'return b"" if not self._client_ids and has_ids and _is_empty(_choice(message)) else out', "return out",
        (METERS,),
    ),
    Mutant(
        "usage goes on", "gateway/continuation/continued.py",
        "self.output_tokens = stream.usage.output_tokens", "self.output_tokens = 0", (CONTINUED,),
    ),
    Mutant(
        "text offsets go on", "gateway/continuation/continued.py",
        "self._text_offset = _text_offset(last)", "self._text_offset = 0", (CONTINUED,),
    ),
    Mutant(
        "a stream that lacks only its end is ended here", "backends/meters/chunks.py",
        "lacks_end = self.is_finished and not (self.done or self.error or self.aborted)", "lacks_end = False",
        (GATEWAY,),
    ),
    Mutant(
        "the end of a stopped engine is not shown", "backends/meters/token_ids.py",
        '.get("finish_reason") == "abort" else None', '.get("finish_reason") == "" else None', (METERS,),
    ),
    # When a stream is continued.
    Mutant(
        "a server that reports no ids excludes", "gateway/continuation/stream.py",
        "if _IDS.search(first) is None:", "if False:", (EXCLUSIONS,),
    ),
    Mutant(
        "a server that parses reasoning excludes", "gateway/continuation/stream.py",
        "elif _REASONING.search(first) is not None:", "elif False:", (EXCLUSIONS,),
    ),
    Mutant(
        "a stream whose ids may not fit excludes", "gateway/continuation/stream.py",
        "if self.bytes_max > self.ids.bytes_max:", "if False:", (EXCLUSIONS,),
    ),
    Mutant(
        "a field that is not known excludes", "gateway/continuation/exclusions.py",
        "if any(call[name] is not None for name in call.keys() - KNOWN):", "if False:", (EXCLUSIONS,),
    ),
    Mutant(
        "the first event is the first with data", "backends/meters/events.py",
        "            if payload(event):\n", "            if event:\n", (FIRST,),
    ),
    Mutant(
        "ids are found however they are written", "backends/meters/token_ids.py",
        """Final = re.compile(rb'"token_ids"\\s*:\\s*""", """Final = re.compile(rb'"token_ids":""", (FIRST,),
    ),
    Mutant(
        "a comment releases nothing that is held", "backends/meters/chunks.py",
        "if not data:  # a comment, between any two events", "if False:", (FIRST,),
    ),
    Mutant(
        "where ids were asked for they are taken out", "gateway/forwarding/attempt.py",
        "elif self._asks_ids:\n            meter", "elif self._asks_ids and not stream.exclusion:\n            meter",
        (GATEWAY,),
    ),
    Mutant(
        "the decision waits for the first event", "gateway/forwarding/attempt.py",
        "await exchange.begun(first.has_begun)", "await exchange.begun(lambda data: first.has_begun(data) or True)",
        (GATEWAY,),
    ),
    Mutant(
        "a cut inside a head is no loss", "gateway/forwarding/attempt.py",
        "except (ConnectFailed, UpstreamAway, UpstreamClosed) as error:", "except ConnectFailed as error:", (GATEWAY,),
    ),
    Mutant(
        "ids have a limit of bytes", "backends/meters/token_ids.py",
        "        if len(ids.output) > self._outputs_max:\n", "        if False:\n", (METERS,),
    ),
    Mutant(
        "the limit of bytes holds for what goes on, too", "gateway/continuation/continued.py",
        "if len(self._ids.output) > self._ids.outputs_max:", "if False:", (CONTINUED,),
    ),
    Mutant(
        "a call that ends engines is given up", "gateway/continuation/loss_evidence.py",
        "is_given_up = call in loss.last_chances", "is_given_up = False", (EVIDENCE,),
    ),
    Mutant(
        "losses that are explained blame no other call", "gateway/continuation/loss_evidence.py",
        "each.is_explained = True", "pass", (EVIDENCE,),
    ),
    Mutant(
        "calls that have lost two engines go on apart", "gateway/continuation/loss_evidence.py",
        "return max((each.trial_ends_at for each in others), default=None)", "return None", (EVIDENCE,),
    ),
    Mutant(
        "of several that have lost two engines, the one on trial is given up", "gateway/continuation/loss_evidence.py",
        " or last_chances", "  # noqa\n        self.last_chances = last_chances", (EVIDENCE,),
    ),
    Mutant(
        "calls that wait to be apart are not sent", "gateway/forwarding/retry.py",
        "await self._wait_apart(sending)", "pass", (LOSSES,),
    ),
    Mutant(
        "an error answer of the next backend is no loss", "gateway/forwarding/retry.py",
        "rejection.is_answer or self._was_lost_here(sending)", "self._was_lost_here(sending)", (LOSSES,),
    ),
    Mutant(
        "a backend that is down is left", "backends/pool.py",
        "return backend.leaving or any(", "return False and any(", (GATEWAY,),
    ),
    Mutant(
        "a stream goes on with the same model alone", "gateway/forwarding/sending.py",
        "return UNKNOWN if own is None or its is None else own.difference(its)", "return None", (GATEWAY,),
    ),
    Mutant(
        "a stream stays where no other backend serves its model", "gateway/scheduling/dispatcher.py",
        "and not (self.is_resumable and self.may_move())", "and not self.is_resumable", (GATEWAY,),
    ),
    Mutant(
        "a stream that is stopped before its first token is sent again", "gateway/forwarding/attempt.py",
        "self._raise_if_stopped(first_event)", "pass", (GATEWAY,),
    ),
    Mutant(
        "a stream without ids and usage is estimated", "backends/meters/token_ids.py",
        "if not self._has_ids:", "if False:", (METERS,),
    ),
    Mutant(
        "an event without data is not the first", "backends/meters/events.py",
        " and data[len(_DATA) : -2]", "", (FIRST,),
    ),
    Mutant(
        "a question that is not answered now is no refusal", "gateway/continuation/prepare.py",
        " or exchange.status in NOT_NOW:", ":", (GATEWAY,),
    ),
    Mutant(
        "a wait that a backend asks for is no longer than the stream's", "gateway/forwarding/retry.py",
        "hold_s = min(hold_s, left_s)", "pass", (LOSSES,),
    ),
    Mutant(
        "a backend that closes again and again is one engine", "gateway/forwarding/retry.py",
        " or self._was_lost_here(sending)", "", (LOSSES,),
    ),
    Mutant(
        "a stream loses no engine that was gone before", "gateway/forwarding/attempt.py",
        "is_answer=is_gone", "is_answer=False", (LOSSES,),
    ),
    Mutant(
        "a stream is not offered to backends for ever that answer with errors", "gateway/forwarding/retry.py",
        "if left_s <= 0:", "if False:", (LOSSES,),
    ),
    Mutant(
        "a backend that falls silent is cut", "gateway/forwarding/attempt.py",
        "exchange.limit_silence(self._context.continuation.silence_s)", "pass", (GATEWAY,),
    ),
    Mutant(
        "a header says whether a stream can be continued", "gateway/forwarding/attempt.py",
        "self._lease.is_resumable = self._trace.is_resumable = stream.exclusion is None",
        "self._lease.is_resumable = self._trace.is_resumable = True", (GATEWAY,),
    ),
    Mutant(
        "a cancelled stream ends", "gateway/forwarding/answers/relay.py",
        "if resumes is not None and cancelled is None and resumes.may_continue():",
        "if resumes is not None and resumes.may_continue():", ("tests/integration/admin/test_requests.py",),
    ),
    Mutant(
        "a backend that refuses to continue is not broken", "gateway/forwarding/retry.py",
        "if not isinstance(left, StreamGivenUp):", "if True:", (GATEWAY,),
    ),
    Mutant(
        "a backend that failed gets nothing for a while", "gateway/forwarding/retry.py",
        '"interrupted", UNREACHABLE_HOLD_S)', '"interrupted", 0.0)', (GATEWAY,),
    ),
    Mutant(
        "a part of an answer is not passed on to another model", "gateway/forwarding/retry.py",
        "None if request.open_stream is not None else await", "await", (GATEWAY,),
    ),
    # Its turn, and what it is charged.
    Mutant(
        "the scheduler is told that it was interrupted", "gateway/forwarding/retry.py",
        "stream.usage if stream.usage.output_tokens > tokens_before else None", "None", (GATEWAY,),
    ),
    Mutant(
        "it goes on as charged as it is", "policies/accounts/ledger.py",
        "entry.is_prepaid, entry.service, entry.outstanding = True, before.service, before.outstanding",
        "entry.is_prepaid = True", (POLICY,),
    ),
    Mutant(
        "what it has is cached where it ran", "policies/fleet/fleet.py",
        "if request.produced_tokens and backend.id == request.ran_at and backend.load.prefixes_shared:", "if False:",
        ("tests/simulation/test_giving_way.py::test_what_goes_on_where_it_ran_holds_no_other_prompt_up",),
    ),
    Mutant(
        "it goes first again", "policies/scheduler.py",
        "self._ledger.interruptions.by_cause[cause] += 1\n        self._wait_again(entry, now, cause)",
        "self._ledger.interruptions.by_cause[cause] += 1\n        self._wait_again(entry, now, Cause.PREEMPTED)",
        (POLICY,),
    ),
    Mutant(
        "it goes back where its blocks are cached", "policies/fleet/fleet.py",
        "                if each.id == home and fits(each):", "                if False:", (POLICY,),
    ),
    Mutant(
        "it gives way a few times at most", "policies/pool/preemption.py",
        "is_due = entry.request.preemptions < times_max and", "is_due =", (POLICY,),
    ),
    Mutant(
        "it gives way after some tokens", "policies/pool/preemption.py",
        "entry.reservation.produced_tokens >= tokens_min", "True", (POLICY,),
    ),
    Mutant(
        "what drains has time to end", "policies/pool/draining.py",
        "return since + self.drain_s", "return since", (POLICY,),
    ),
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(run_chosen(__doc__, MUTANTS))
