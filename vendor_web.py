"""Fetch the page's packages from npm, and keep of each the files that vendored.toml names.

    python vendor_web.py

Every archive is checked against its integrity (sha512) before a file is taken from it, and vendored.sha256 records what
was written, so that a test finds a vendored file that was changed by hand. Nothing is built: a file is the package's.
"""

import base64
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
MANIFEST, SUMS = ROOT / "vendored.toml", ROOT / "vendored.sha256"


def main() -> int:
    written: dict[str, bytes] = {}
    for package in packages():
        archive = packed(package)
        found = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
        if found != package["integrity"]:
            print(f"{package['name']}: the archive has {found}, vendored.toml says otherwise", file=sys.stderr)
            return 1
        written |= files_of(archive, package["files"])
    for target, body in written.items():
        path = ROOT / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    SUMS.write_text("".join(f"{hashlib.sha256(body).hexdigest()}  {name}\n" for name, body in sorted(written.items())))
    return 0


def packages() -> list[dict[str, Any]]:
    """What the manifest names."""
    found: list[dict[str, Any]] = tomllib.loads(MANIFEST.read_text(encoding="utf-8"))["package"]
    return found


def packed(package: Mapping[str, Any]) -> bytes:
    """The package's archive, by npm and so from the registry that npm is configured with."""
    with tempfile.TemporaryDirectory() as folder:
        asked = ["npm", "pack", "--json", "--ignore-scripts", f"--pack-destination={folder}"]
        done = subprocess.run(
            [*asked, f"{package['name']}@{package['version']}"], check=True, capture_output=True, text=True
        )
        (name,) = (each["filename"] for each in entries(json.loads(done.stdout)))
        return Path(folder, name).read_bytes()


def entries(told: Any) -> list[dict[str, Any]]:
    """What npm packed: a list, or an object by package since npm 11."""
    return list(told.values()) if isinstance(told, dict) else told


def files_of(archive: bytes, wanted: Mapping[str, str]) -> dict[str, bytes]:
    """These files of an archive, by where they go."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        members = {member.name.partition("/")[2]: member for member in tar.getmembers() if member.isfile()}
        found = {}
        for source, target in wanted.items():
            opened = tar.extractfile(members[source])
            assert opened is not None, "it is a file"
            found[target] = opened.read()
    return found


if __name__ == "__main__":
    sys.exit(main())
