"""Install packages into an environment: by uv, which takes a fifth of pip's time, and where uv cannot be had, by pip.

    python install.py .venv -c constraints.txt -e .

Makes the environment where there is none; pip goes into it, too. uv is the one on PATH, or comes from the index that
pip uses. It reads no pip.conf, so it is told what pip is configured with: indexes, links, certificates, proxy.
"""

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

PIP = "pip>=25.1"  # the first with --group
UV = "uv>=0.13,<1"
# Options of `pip install` after its configuration files and PIP_* are read. pip has no public way to ask for them.
OPTIONS_OF_PIP = """
import json
from pip._internal.commands import create_command
from pip._internal.models.index import PyPI
options, _ = create_command("install").parse_args([])
if options.index_url == PyPI.simple_url:
    options.index_url = None  # nothing is configured: uv may have an index of its own
print(json.dumps(vars(options), default=str))
"""


def main(folder: str, *arguments: str) -> int:
    python = Path(folder, "bin", "python").absolute()
    if not python.exists():
        venv.create(folder, symlinks=True)
    pip = pip_for(python)
    uv = shutil.which("uv") or uv_by_pip(pip, python.parent)
    if uv is not None:
        environment = {**uv_environment(pip), **os.environ}
        install = [uv, "pip", "install", "-q", "--python", str(python), PIP, *arguments]
        if subprocess.run(install, env=environment, check=False).returncode == 0:
            return 0
    print("Installing by pip: uv cannot be had, or could not install.", file=sys.stderr)
    subprocess.run([*pip, "install", "-q", "--upgrade", PIP], check=True)
    return subprocess.run([python, "-m", "pip", "install", "-q", "--no-compile", *arguments], check=False).returncode


def pip_for(python: Path) -> Sequence[str]:
    """A pip that installs for this interpreter: that of the Python that runs this, where it has one (Debian's has not
    always); else one from Python's own bundle, which takes 4 s to unpack.
    """
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "--python", str(python)]
    subprocess.run([python, "-m", "ensurepip"], check=True, capture_output=True)
    return [str(python), "-m", "pip"]


def uv_by_pip(pip: Sequence[str], programs: Path) -> str | None:
    """The path of uv in the environment; None where no index has it for this machine."""
    uv = programs / "uv"
    if not uv.exists():
        quiet = ["-q", "--disable-pip-version-check", "--only-binary", ":all:"]
        subprocess.run([*pip, "install", *quiet, "-c", "constraints.txt", UV], check=False)
    return str(uv) if uv.exists() else None


def uv_environment(pip: Sequence[str]) -> dict[str, str]:
    """What pip is configured with, as uv's variables; empty where this pip does not tell."""
    asked = subprocess.run([pip[0], "-c", OPTIONS_OF_PIP], capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        return {}
    options = json.loads(asked.stdout)
    variables = {
        "UV_DEFAULT_INDEX": options["index_url"],
        "UV_INDEX": " ".join(options["extra_index_urls"]),
        "UV_INDEX_STRATEGY": "unsafe-best-match",  # pip's: the best version, wherever it is
        "UV_FIND_LINKS": ",".join(options["find_links"]),
        "UV_NO_INDEX": "1" if options["no_index"] else "",
        "UV_INSECURE_HOST": " ".join(options["trusted_hosts"]),
        "UV_HTTP_TIMEOUT": str(int(options["timeout"])),
        "SSL_CERT_FILE": options["cert"],
        "SSL_CLIENT_CERT": options["client_cert"],
        "ALL_PROXY": options["proxy"],
    }
    return {name: value for name, value in variables.items() if value}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
