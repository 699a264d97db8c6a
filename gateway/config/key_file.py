"""Key file: API keys at rest as HMACs, one JSON line per key, and the file with the secret of these HMACs.

A key is 256 random bits, so a fast HMAC is sufficient (a slow password hash would only help an attacker to load the
gateway). Neither file holds a key: a lost key is replaced by a new one. Every change writes a new file beside the old
one, syncs it and renames it to the old name, under a lock on the folder: a crash leaves the old file or the new one,
and concurrent writers do not lose each other's keys.
"""

import contextlib
import fcntl
import hmac
import json
import os
import secrets
import string
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from gateway.config.files import written_whole

KEY_PREFIX = "fl-"
SECRET_BYTES = 32
KEY_ALPHABET = string.ascii_letters + string.digits
KEY_CHARS = 43  # 256 bits
KEYS_FILE_BYTES_MAX = 64 << 20
HMAC_HEX_CHARS = 64
FIRST_KEY_CHARS_MIN, FIRST_KEY_CHARS_MAX = 32, 512  # of a key that the operator may have chosen


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An API key as a line of the key file has it. `hmac` is the HMAC of the key in hex; `last_four` are the key's last
    characters, by which its owner recognizes it.
    """

    tenant: str
    hmac: str
    last_four: str
    created_at: str


class KeyHmac:
    """A maker of the HMAC-SHA256 of API keys by one secret. Every client's call needs an HMAC, and the functions of the
    module hmac take most of their time for its beginning, which is the same for all keys. Here it is begun once.
    """

    __slots__ = ("_begun",)

    def __init__(self, secret: bytes) -> None:
        self._begun = hmac.new(secret, digestmod="sha256")

    def of(self, key: str) -> bytes:
        """The HMAC of a key."""
        of_key = self._begun.copy()
        of_key.update(key.encode(errors="surrogateescape"))
        return of_key.digest()


def key_hmac(secret: bytes, key: str) -> bytes:
    """The HMAC-SHA256 of an API key. For many keys and one secret, KeyHmac is faster."""
    return hmac.digest(secret, key.encode(errors="surrogateescape"), "sha256")


def read_keys(path: Path) -> list[KeyRecord]:
    """Return the keys in the file; none where there is no file. Raises ValueError, naming file and line."""
    try:
        with path.open("rb") as file:
            lines = file.read(KEYS_FILE_BYTES_MAX).splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ValueError(f"the file {path} cannot be read: {error.strerror}") from error
    return [_record(line, path, number) for number, line in enumerate(lines, start=1) if line.strip()]


def new_key() -> str:
    """A new random key. Letters and digits only: no part of it may look like an option to `keys revoke`."""
    return KEY_PREFIX + "".join(secrets.choice(KEY_ALPHABET) for _ in range(KEY_CHARS))


def add_key(
    path: Path, *, tenant: str, secret: bytes, created_at: str, show: Callable[[str], None] | None = None
) -> str:
    """Create a key for a tenant, write its HMAC, and return the key, which is stored nowhere. `show` is called with the
    key just before the file has its HMAC: if it fails, the file has no key that nobody knows.
    """
    key = new_key()
    record = KeyRecord(tenant=tenant, hmac=key_hmac(secret, key).hex(), last_four=key[-4:], created_at=created_at)
    with _locked(path.parent):
        _write(path, _lines([*read_keys(path), record]), None if show is None else lambda: show(key))
    return key


def revoke_key(path: Path, mark: str) -> list[KeyRecord]:
    """Remove and return the one key whose HMAC begins with `mark`, or whose last four characters are `mark`. Where
    several keys match, they are returned and none is removed.
    """
    with _locked(path.parent):
        records = read_keys(path)
        found = [record for record in records if record.hmac.startswith(mark) or record.last_four == mark]
        if len(found) == 1:
            _write(path, _lines([record for record in records if record not in found]))
    return found


def first_key(path: Path) -> str:
    """The key in this file. A missing key is generated, readable by its owner only. Raises ValueError; OSError where
    the file cannot be read or written.
    """
    if not path.exists():
        make_secret(path, new_key())
    key = path.read_text(encoding="utf-8").strip()
    if not FIRST_KEY_CHARS_MIN <= len(key) <= FIRST_KEY_CHARS_MAX or not key.isascii() or not key.isprintable():
        raise ValueError(
            f"the file {path} must hold a key of {FIRST_KEY_CHARS_MIN} to {FIRST_KEY_CHARS_MAX} characters"
        )
    return key


def make_secret(path: Path, secret: str | None = None) -> None:
    """Write a secret (None: a random one), readable by its owner only, unless the file exists. Another process never
    sees a part of the file.
    """
    if path.exists():
        return
    with _locked(path.parent):
        if not path.exists():  # another process was faster
            _write(path, (secret or secrets.token_urlsafe(SECRET_BYTES)) + "\n")


def _record(line: bytes, path: Path, number: int) -> KeyRecord:
    try:
        record = KeyRecord(**json.loads(line))
        valid = all(isinstance(value, str) for value in asdict(record).values())
        valid = valid and len(record.hmac) == HMAC_HEX_CHARS and bytes.fromhex(record.hmac) != b""
    except (ValueError, TypeError):
        valid = False
    if not valid:
        raise ValueError(f"the file {path} has no valid key in line {number}")
    return record


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _lines(records: list[KeyRecord]) -> str:
    return "".join(json.dumps(asdict(record)) + "\n" for record in records)


def _write(path: Path, text: str, before: Callable[[], None] | None = None) -> None:
    """Replace the file. `before` is called last before that, and if it fails, the old file stays."""
    with written_whole(path) as new, new.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
        if before is not None:
            before()
