"""What TLS at the gateway's port costs: CPU of the gateway per chunk and per request, beside plain HTTP in turns.

    python tests/benchmarks/relay/tls.py [--tests P100,C] [--reps 3]

The load generator speaks no TLS, so haproxy stands before the gateway in both systems, on the CPU of the load, and
speaks TLS 1.3 or plain HTTP to it. Only the gateway's CPU time is counted. Needs haproxy and openssl.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import HERE, TESTS, Lab, Proxy, fairlead, free_port, line, process

HAPROXY = """
global
  maxconn 4000
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
listen relay
  bind 127.0.0.1:{port}
  http-reuse never
  server gateway 127.0.0.1:{gateway}{tls}
"""


def certificate(folder: Path) -> None:
    name = ("-subj", "/CN=localhost", "-days", "2")
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "server.key")
    subprocess.run(["openssl", "req", "-x509", *key, "-out", "server.pem", *name], cwd=folder, check=True)


class TlsLab(Lab):
    """`plain` and `tls`: the gateway behind a haproxy that speaks the one or the other to it."""

    @contextmanager
    def _proxy(self, system: str) -> Iterator[Proxy]:
        folder = Path(tempfile.mkdtemp(dir=self._directory))
        gateway, port = free_port(), free_port()
        command = fairlead(folder, gateway, self._backend_port)
        if system == "tls":
            certificate(folder)
            config = folder / "fairlead.yaml"
            where = f"{{port: {gateway}, tls: {{cert_file: {folder}/server.pem, key_file: {folder}/server.key}}}}"
            config.write_text(config.read_text().replace(f"{{port: {gateway}}}", where))
        (folder / "haproxy.cfg").write_text(
            HAPROXY.format(port=port, gateway=gateway, tls=" ssl verify none" if system == "tls" else "")
        )
        haproxy = [shutil.which("haproxy") or "/usr/sbin/haproxy", "-f", str(folder / "haproxy.cfg")]
        with (
            process(command, cpu=1, log=folder / "log", port=gateway) as pid,
            process(haproxy, cpu=0, log=folder / "haproxy.log", port=port),
        ):
            yield Proxy(port, pid)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tests", type=lambda text: text.split(","), default=["P100", "C"])
    parser.add_argument("--reps", type=int, default=3)
    options = parser.parse_args()
    subprocess.run(["make", "-s", "-C", str(HERE)], check=True)
    with tempfile.TemporaryDirectory(prefix="fairlead-tls-") as directory, ExitStack() as stack:
        lab = TlsLab(Path(directory), stack)
        runs = []
        for rep in range(options.reps):
            for test in options.tests:
                for system in ("plain", "tls"):
                    run = lab._run(system, test)
                    runs.append(run)
                    print(f"{rep} {test:6} {system:6} {line(run)}", flush=True)
    for test in options.tests:
        unit = TESTS[test].unit
        plain, tls = (
            statistics.median(run[unit] for run in runs if (run["test"], run["system"]) == (test, system))
            for system in ("plain", "tls")
        )
        print(f"{test}: {unit} plain {plain:.1f}, tls {tls:.1f}, ratio {tls / plain:.2f}")


if __name__ == "__main__":
    sys.exit(main())
