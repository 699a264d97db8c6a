"""What is charged for calls whose clients left, beside what a real vLLM counted for them.

    python tests/benchmarks/left_calls/bench.py [--url URL of a vLLM that runs] [--rounds 6] [--seed 1]

Batches of calls are sent through a gateway and left at random times. vLLM's counters say what it generated in all; the
gateway's access log, what each call was charged. Printed per case: both sums, their ratio, and the mean of the errors
of single batches.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "vllm"))

from processes import Gateway, Vllm, until
from wire import CHAT, Call, fetch

from backends.metrics import parse_metrics

HELLO = [{"role": "user", "content": "Hello"}]
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
LONG = {"model": "tiny", "ignore_eos": True, "max_tokens": 3500}
LEAVE_S = 0.3, 3.0
CASES: dict[str, tuple[str, dict[str, Any], int]] = {  # path, body, calls at once
    "whole chat": (CHAT, {**LONG, "messages": HELLO}, 1),
    "whole chat, 4 at once": (CHAT, {**LONG, "messages": HELLO}, 4),
    "whole chat, 8 at once": (CHAT, {**LONG, "messages": HELLO}, 8),
    "whole chat, n=4": (CHAT, {**LONG, "messages": HELLO, "n": 4}, 1),
    "whole chat, n=4, 2 at once": (CHAT, {**LONG, "messages": HELLO, "n": 4}, 2),
    "whole response": (RESPONSES, {"model": "tiny", "input": "Hello", "max_output_tokens": 3500}, 1),
    "chat stream": (CHAT, {**LONG, "messages": HELLO, "stream": True}, 4),
    "message stream": (MESSAGES, {**LONG, "messages": HELLO, "stream": True}, 1),
    "message stream, 8 at once": (MESSAGES, {**LONG, "messages": HELLO, "stream": True}, 8),
    "response stream": (RESPONSES, {"model": "tiny", "input": "Hi", "max_output_tokens": 3500, "stream": True}, 1),
    "response stream, 8 at once": (
        RESPONSES,
        {"model": "tiny", "input": "Hi", "max_output_tokens": 3500, "stream": True},
        8,
    ),
}


def metrics(url: str):
    return parse_metrics(fetch(url, "/metrics")[1].decode())


def leave(gateway: Gateway, path: str, body: dict[str, Any], start_s: float, leave_s: float) -> None:
    time.sleep(start_s)
    with Call(gateway.url, path, body) as call:
        ends = time.monotonic() + leave_s
        if body.get("stream"):
            for _ in call.events():
                if time.monotonic() >= ends:
                    return
        time.sleep(max(0.0, ends - time.monotonic()))


def charged(log: Path, skip: int) -> tuple[list[dict[str, Any]], int]:
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith('{"') and "outcome" in line]
    return lines[skip:], len(lines)


def run_case(vllm_url: str, gateway: Gateway, log: Path, name: str, *, rounds: int, draw: random.Random) -> None:
    path, body, calls = CASES[name]
    decoded_all, charged_all, errors = 0, 0, list[float]()
    for _ in range(rounds):
        until(lambda: gateway.in_flight() == 0 and metrics(vllm_url).requests_running == 0)
        time.sleep(draw.uniform(0.0, 1.5))
        _, skip = charged(log, 0)
        before = metrics(vllm_url).generation_tokens_total
        with ThreadPoolExecutor(calls) as threads:
            for _ in range(calls):
                threads.submit(leave, gateway, path, body, draw.uniform(0, 0.3) * (calls > 1), draw.uniform(*LEAVE_S))
        until(lambda: gateway.in_flight() == 0 and metrics(vllm_url).requests_running == 0)
        until(lambda skip=skip: len(charged(log, skip)[0]) == calls)
        decoded = metrics(vllm_url).generation_tokens_total - before
        tokens = sum(line["output_tokens"] or 0 for line in charged(log, skip)[0])
        decoded_all, charged_all = decoded_all + decoded, charged_all + tokens
        errors.append(tokens / max(decoded, 1) - 1)
    mean = sum(abs(error) for error in errors) / len(errors)
    each = " ".join(f"{error:+.0%}" for error in errors)
    ratio = charged_all / max(decoded_all, 1)
    print(f"| {name} | {decoded_all} | {charged_all} | {ratio - 1:+.1%} | {mean:.1%} | {each}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", action="append", choices=list(CASES))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        folder, vllm = Path(directory), None
        if arguments.url is None:
            vllm = Vllm(folder / "vllm.log", "--enable-prompt-tokens-details").start()
        url = arguments.url or vllm.url
        gateway = Gateway(folder, SimpleNamespace(url=url)).start()
        try:
            print("| case | decoded | charged | off | mean of batches | each batch\n|---|---|---|---|---|---")
            for name in arguments.case or CASES:
                draw = random.Random(f"{arguments.seed}{name}")
                run_case(url, gateway, folder / "gateway.log", name, rounds=arguments.rounds, draw=draw)
        finally:
            gateway.stop()
            if vllm is not None:
                vllm.stop()


if __name__ == "__main__":
    main()
