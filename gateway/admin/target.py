"""Where the admin port is and the file with a key to it, as commands find them."""

from dataclasses import dataclass
from pathlib import Path

from gateway.admin.client import AdminClient, UnreachableError


@dataclass(frozen=True, slots=True)
class AdminTarget:
    """An admin port. `key_file` is read for every client, because its key may change while a command runs."""

    url: str
    key_file: Path

    def connect(self) -> AdminClient:
        """A client with the present key. Raises UnreachableError where no key can be read."""
        try:
            key = self.key_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeError) as error:
            raise UnreachableError(f"the key cannot be read from {self.key_file}: {error}") from error
        return AdminClient(self.url, key)


def find_admin(config: Path | None, *, url: str | None, key_file: Path | None) -> AdminTarget:
    """The target of --url and --key-file; what is not given is that of the configuration.

    With both of them no configuration is read: neither its time nor its errors matter then. Raises UnreachableError for
    a configuration with errors.
    """
    if url is not None and key_file is not None:
        return AdminTarget(url, key_file)
    from gateway.config import ConfigError, load_config  # noqa: PLC0415

    try:
        admin = load_config(config, check_files=False).admin
    except ConfigError as error:
        raise UnreachableError(str(error)) from error
    host = f"[{admin.host}]" if ":" in admin.host else admin.host
    return AdminTarget(url or f"http://{host}:{admin.port}", key_file or admin.key_file)
