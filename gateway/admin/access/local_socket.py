"""Local socket: commands of the same user on the same machine sign in through it at a gateway that is tried out.

Such a gateway has its first key in no file. It listens on a Unix socket instead, in a folder that only its user may
enter, as ssh-agent and gpg-agent do: a process that reaches it could read the gateway's memory anyway. The name of the
socket is the number of the admin port, which one gateway of this machine has at a time.
"""

import contextlib
import json
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

SUFFIX: Final = ".sock"
FOLDER_MODE: Final = 0o700
OTHERS: Final = 0o077  # mode bits of group and others
ANSWER_S_MAX: Final = 2.0  # of a gateway on this machine, which answers from memory
ANSWER_BYTES_MAX: Final = 4096
ASK_KEY: Final = "key"
ASK_LINK: Final = "link"


def folders() -> Iterator[Path]:
    """The folders where sockets may be, the best one first: the folder of the login session, which is gone after a
    restart of the machine, and one below the folder for temporary files.
    """
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        yield Path(runtime, "fairlead")
    yield Path(tempfile.gettempdir(), f"fairlead-{os.geteuid()}")


def is_private(folder: Path) -> bool:
    """Whether this is a folder of this user, and not a link, that no other user may enter."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & OTHERS


def local_ports() -> list[int]:
    """The admin ports that may belong to a gateway that this user tries out."""
    names = {file.stem for folder in folders() if is_private(folder) for file in folder.glob(f"*{SUFFIX}")}
    return sorted(int(name) for name in names if name.isdecimal())


def ask_local(port: int, question: str) -> tuple[str, str] | None:
    """The URL of this admin port, and a key (ASK_KEY) or one-time link (ASK_LINK); None if no gateway answers."""
    for folder in folders():
        if is_private(folder):
            with contextlib.suppress(OSError, ValueError, KeyError):
                told = json.loads(_answer(folder / f"{port}{SUFFIX}", question))
                return told["url"], told["secret"]
    return None


def _answer(path: Path, question: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_S_MAX)
        connection.connect(str(path))
        connection.sendall(f"{question}\n".encode())
        with connection.makefile("rb") as answer:
            return answer.readline(ANSWER_BYTES_MAX)
