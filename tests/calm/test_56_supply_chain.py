"""What the image is made of is listed and pinned by hash, and the gateway starts without a network."""

import json
import re
import site
import subprocess
import sys
import textwrap
from importlib import metadata
from pathlib import Path

import pytest

import sbom
import vendor_web
from tests.calm.table import ROOT

LOCKED = dict(re.findall(r"^([\w.-]+)==([^ ]+) \\$", sbom.LOCK.read_text(), re.MULTILINE))
OWN_S_MAX = 3.0
GIVEN_S = 60.0  # on a machine that others use too
NETWORKLESS = subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode == 0
# Brings up the loopback device, as in a container without a network; shows that nothing else is reachable; then starts
# the gateway with its embedded engine, and asks it.
STARTED = """
import fcntl, json, os, resource, socket, struct, subprocess, sys, time, urllib.request
with socket.socket() as made:
    fcntl.ioctl(made, 0x8914, struct.pack("16sH14s", b"lo", 1, b""))  # SIOCSIFFLAGS, IFF_UP
try:
    socket.create_connection(("192.0.2.1", 443), timeout=5)
    sys.exit("there is a network")
except OSError as error:
    assert error.errno == 101, error  # ENETUNREACH
began = time.monotonic()
process = subprocess.Popen(
    [sys.executable, "-c", "from gateway.cli import main; main()", "serve"],
    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
)
for line in process.stderr:
    if line.startswith("fairlead serves "):
        break
else:
    sys.exit("it did not start")
url, wall_s = line.split()[2].rstrip("."), time.monotonic() - began
waited_s = int(open(f"/proc/{process.pid}/schedstat").read().split()[1]) / 1e9  # its main thread, for a core
body = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}).encode()
asked = urllib.request.Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"})
status = urllib.request.urlopen(asked, timeout=30).status
process.terminate()
process.communicate()
print(json.dumps({"own_s": wall_s - waited_s, "wall_s": wall_s, "status": status, "exit": process.returncode}))
"""


def test_the_bill_of_materials_is_that_of_the_lock_and_of_what_is_vendored(figure):
    assert sbom.SBOM.read_text() == sbom.text(), "make sbom"
    bill = json.loads(sbom.SBOM.read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    vendored = {each["name"]: each["version"] for each in vendor_web.packages() if each["name"] != "axe-core"}
    assert {each["name"]: each["version"] for each in bill["components"]} == LOCKED | vendored
    assert all(each["hashes"] for each in bill["components"])
    for each in bill["components"]:
        registry = "npm" if each["name"] in vendored else "pypi"
        assert each["purl"] == f"pkg:{registry}/{each['name']}@{each['version']}"
    hashes = re.findall(r"sha256:([0-9a-f]{64})", sbom.LOCK.read_text())
    of_lock = [each["content"] for one in bill["components"] for each in one["hashes"] if each["alg"] == "SHA-256"]
    assert sorted(hashes) == sorted(of_lock)
    figure(56, "packages of the image with hashes", len(bill["components"]), target=f"all {len(LOCKED | vendored)}")


def test_pip_takes_no_file_whose_hash_is_not_in_the_lock(tmp_path):
    """A wheel with the name and version of a locked package, and another content, is refused before it is unpacked."""
    name, version = "idna", LOCKED["idna"]
    tmp_path.joinpath(f"{name}-{version}-py3-none-any.whl").write_bytes(b"PK\x05\x06" + bytes(18))
    lock = tmp_path / "lock"
    lock.write_text(re.search(rf"^{name}==(?:.*\\\n)*.*$", sbom.LOCK.read_text(), re.MULTILINE)[0] + "\n")
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--find-links", str(tmp_path), "--target", "t"]
    done = subprocess.run(
        [*pip, "--no-deps", "--require-hashes", "-r", str(lock)],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


def test_nothing_of_ours_runs_when_python_starts():
    """A .pth file runs code in every Python of an environment; fairlead brings none but that of an editable install."""
    ours = [file for file in metadata.files("fairlead") or () if str(file).endswith(".pth")]
    assert all(re.fullmatch(r"__editable__\.fairlead-[\w.]+\.pth", str(file)) for file in ours)
    for folder in site.getsitepackages():
        for file in Path(folder).glob("*fairlead*.pth"):
            lines = file.read_text().split("\n")
            assert all(not line.startswith("import ") or "__editable___fairlead" in line for line in lines)
    assert list(ROOT.glob("*.pth")) == []


@pytest.mark.skipif(not NETWORKLESS, reason="this user may not make a network namespace (unshare --net)")
def test_the_gateway_starts_and_serves_without_a_network(tmp_path, figure):
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "FAIRLEAD_LISTEN__PORT": "0",
        "FAIRLEAD_SHUTDOWN__LAME_DUCK_S": "0",
    }
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", textwrap.dedent(STARTED)],
        check=False, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=GIVEN_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    figure(56, "start without a network", told["wall_s"], "s", target="< 3 s")
    figure(56, "own time of a start without a network", told["own_s"], "s", target="< 3 s")
    assert (told["status"], told["exit"]) == (200, 0)
    assert told["own_s"] < OWN_S_MAX
