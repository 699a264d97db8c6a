"""Do the commands of the pages work as they stand? Runs each page in an empty folder, and compares.

    python -m tests.docs.commands            every page of docs/tutorials and docs/how-to, and those of administration
    python -m tests.docs.commands PAGE ...   these pages

A page runs in one shell, in a network namespace of its own where this user may make one (elsewhere the ports that it
names have to be free). What counts in a page:

- Of a `console` block, each line that begins with `$ ` is a command (a `\\` at its end continues it). The lines after
  it are what it prints, in this order: a number stands for any number, `...` for anything.
- A `yaml` or `sh` block whose first line is `# NAME.yaml` or `# NAME.sh` is written to that file.
- `<!-- engines: 8001 8002 -->` starts an embedded engine at each port, in the place of the reader's vLLMs.
- `<!-- not run: REASON -->` before a block leaves it out. Each `console` block of all other pages has one, too.
"""

import argparse
import asyncio
import contextlib
import fcntl
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from backends.engine.http.server import EngineOptions, EngineServer

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("tutorials/*.md", "how-to/*.md", "admin.md", "tenancy.md")
    for path in (ROOT / "docs").glob(pattern)
)
BLOCK = re.compile(r"(<!-- not run: [^\n]+ -->\n+)?^```(console|yaml|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ENGINES = re.compile(r"<!-- engines: ([\d ]+) -->")
FILE = re.compile(r"# ([a-z-]+\.(?:yaml|sh))\n")
PAGE_S_MAX = 180
SIOCSIFFLAGS, IFF_UP = 0x8914, 1  # linux/sockios.h, net/if.h


@dataclass
class Command:
    """One command of a page, and the lines that the page says it prints."""

    text: str
    printed: list[str] = field(default_factory=list)


def steps(page: str) -> Iterator[Command | tuple[str, str]]:
    """The commands of a page, and the files (name, text) that it has the reader write, in order."""
    for is_left_out, language, text in BLOCK.findall(page):
        if is_left_out:
            continue
        if language != "console":
            if named := FILE.match(text):
                yield named[1], text
            continue
        command: Command | None = None
        for line in text.splitlines():
            if line.startswith("$ "):
                if command is not None:
                    yield command
                command = Command(line.removeprefix("$ "))
            elif command is not None and command.text.endswith("\\"):
                command.text += f"\n{line}"
            elif command is not None and line.strip():
                command.printed.append(line)
        if command is not None:
            yield command


def is_in(expected: list[str], printed: str) -> bool:
    """Whether these lines come in this order in what was printed."""
    at = 0
    for line in expected:
        pattern = r"[^\n]*".join(
            re.sub(r"\d+(?:[.,]\d+)*", r"\\d[\\d.,]*", re.escape(part.strip())) for part in line.split("...")
        )
        if (found := re.compile(pattern.replace(r"\ ", r"\s+")).search(printed, at)) is None:
            return False
        at = found.end()
    return True


def script(page: str) -> str:
    """The page as one shell script; what each command prints stands between two lines of its own."""
    lines = ["set -eu -o pipefail", "set +m"]
    number = 0
    for step in steps(page):
        if isinstance(step, tuple):
            lines.append(f"cat > {step[0]} <<'END OF FILE'\n{step[1]}END OF FILE")
            continue
        lines += [f"echo '>>> {number}'", f"{step.text}", f"echo '<<< {number}'"]
        number += 1
    return "\n".join(lines)


@contextlib.asynccontextmanager
async def engines(ports: list[int]) -> AsyncIterator[None]:
    """An embedded engine at each of these ports."""
    servers = [EngineServer(EngineOptions()) for _ in ports]
    for server, port in zip(servers, ports, strict=True):
        await server.start(port=port)
    yield
    for server in servers:
        await server.stop()


async def run(name: str, page: str) -> list[str]:
    """Run a page; what is wrong with it, in sentences."""
    commands = [step for step in steps(page) if isinstance(step, Command)]
    ports = [int(port) for found in ENGINES.findall(page) for port in found.split()]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "NO_COLOR": "1",
            "COLUMNS": "120",
            "HOME": folder,
            "TMPDIR": folder,  # where a gateway without a configuration, of another program, would be found
        }
        async with engines(ports):
            shell = await asyncio.create_subprocess_exec(
                "bash", "-c", script(page), cwd=folder, env=environment, start_new_session=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            assert shell.stdout is not None
            read = asyncio.create_task(shell.stdout.read())
            try:
                async with asyncio.timeout(PAGE_S_MAX):
                    await shell.wait()
            except TimeoutError:
                pass
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)  # what the page started and left running
            printed = (await read).decode()
    for number, command in enumerate(commands):
        said, ended, _ = printed.partition(f">>> {number}\n")[2].partition(f"<<< {number}\n")
        if not ended:
            return [f"{name}: `{command.text}` fails, or does not end:\n{said or printed[-2000:]}"]
        if not is_in(command.printed, said):
            expected = "\n".join(command.printed)
            return [f"{name}: `{command.text}` prints\n{said}\nwhere the page has\n{expected}"]
    return []


def in_a_network_of_its_own() -> None:
    """Start this program again where no port is taken, if this user may make such a place."""
    alone = ["unshare", "--net", "--map-root-user"]
    if "OWN_NETWORK" in os.environ:
        with socket.socket() as any_socket:
            fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", IFF_UP, b""))
    elif subprocess.run([*alone, "true"], check=False, capture_output=True).returncode == 0:
        os.environ["OWN_NETWORK"] = "1"
        os.execvp("unshare", [*alone, sys.executable, "-m", "tests.docs.commands", *sys.argv[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES)
    pages = parser.parse_args().pages
    in_a_network_of_its_own()
    wrong = [sentence for page in pages for sentence in asyncio.run(run(page.name, page.read_text()))]
    print("\n\n".join(wrong) or f"{len(pages)} pages: every command works as it stands")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
