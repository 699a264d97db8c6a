"""How long `fairlead serve` takes from its start to its first answer, and what it holds when it is idle.

    python tests/benchmarks/relay/start.py --reps 5 [--beside CHECKOUT]

Without a configuration (embedded engine, admin port) and before one backend, each checkout in turn. The first start of
each compiles modules and is not counted. CPU time is that of all threads up to the answer; memory is what /proc says of
the process a second later.
"""

import argparse
import http.server
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[3]
IDLE_S = 1.0
MODEL = "fairlead-demo"
CALL = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}
MEASURES = ("listens, s", "first answer, s", "CPU, s", "RSS, MB", "of it not files, MB")


class Backend(http.server.BaseHTTPRequestHandler):
    """Is healthy, has one model, and answers every call with one word."""

    def do_GET(self):
        self.answer({"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 4096}]})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        choices = [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}]
        self.answer({"choices": choices, "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}})

    def answer(self, body):
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def start(tree, config):
    """MEASURES of one start of the gateway in this checkout."""
    with tempfile.TemporaryDirectory() as folder:
        if config is not None:
            Path(folder, "fairlead.yaml").write_text(config)
        began = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-c", "from gateway.cli import main; main()", "serve", "--port", "0"],
            cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
            env={**os.environ, "PYTHONPATH": str(tree), "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir(), "pyc"))},
        )  # fmt: skip
        try:
            while not (said := re.search(r"serves (http://[\d.]+:\d+)", process.stderr.readline())):
                pass
            listens = time.monotonic() - began
            wait_for_answer(said[1])
            answered = time.monotonic() - began
            proc = Path(f"/proc/{process.pid}")
            cpu = sum(int(each.read_text().split()[0]) for each in proc.glob("task/*/schedstat")) / 1e9
            time.sleep(IDLE_S)
            status = proc.joinpath("status").read_text()
            held = [int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1024 for name in ("VmRSS", "RssAnon")]
        finally:
            process.kill()
            process.communicate()
    return listens, answered, cpu, *held


def wait_for_answer(url):
    call = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(CALL).encode(), {"Content-Type": "application/json"}
    )
    while True:
        try:
            urllib.request.urlopen(call).read()
        except urllib.error.HTTPError:  # the backend is not known to be healthy yet
            time.sleep(0.01)
        else:
            return


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--beside", type=Path, help="another checkout, which takes turns with this one")
    asked = parser.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Backend)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    backend = f"listen: {{port: 0}}\nbackends: [{{url: 'http://127.0.0.1:{server.server_address[1]}'}}]\n"
    trees = [ROOT, *([asked.beside.resolve()] if asked.beside else [])]
    cases = [(name, config, tree) for name, config in (("alone", None), ("backend", backend)) for tree in trees]
    found = {(name, tree): [] for name, _, tree in cases}
    for rep in range(asked.reps + 1):
        for name, config, tree in cases:
            measured = start(tree, config)
            if rep:
                found[name, tree].append(measured)
    for (name, tree), runs in found.items():
        print(f"{name}, {tree.name}")
        for measure, values in zip(MEASURES, zip(*runs, strict=True), strict=True):
            print(f"  {measure:<20} {statistics.median(values):7.2f} ({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    main()
