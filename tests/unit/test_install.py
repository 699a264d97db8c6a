"""`make run` and `make test` install by uv, from where pip would install."""

import subprocess
import sys
from pathlib import Path

import pytest

import install

PIP = [sys.executable, "-m", "pip"]


@pytest.fixture
def pip_conf(tmp_path, monkeypatch):
    for name in ("FIND_LINKS", "CERT", "DEFAULT_TIMEOUT", "EXTRA_INDEX_URL", "INDEX_URL", "NO_INDEX", "TRUSTED_HOST"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    file = tmp_path / "pip.conf"
    file.touch()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")  # alone among pip's files
    return file


def test_uv_is_told_what_pip_reads_from_its_files_and_variables(pip_conf, monkeypatch):
    pip_conf.write_text(
        "[global]\nindex-url = http://one.test/simple\ntrusted-host = one.test\ntimeout = 7\ncert = /a/ca.pem\n"
        "[install]\nextra-index-url =\n  http://two.test/simple\n  file:///three\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(pip_conf))
    monkeypatch.setenv("PIP_INDEX_URL", "http://four.test/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels http://five.test/")
    told = install.uv_environment(PIP)
    assert told["UV_DEFAULT_INDEX"] == "http://four.test/simple"  # a variable counts more than a file
    assert told["UV_INDEX"].split()[-2:] == ["http://two.test/simple", "file:///three"]
    assert told["UV_FIND_LINKS"].split(",")[-2:] == ["/wheels", "http://five.test/"]
    assert (told["UV_INSECURE_HOST"], told["UV_HTTP_TIMEOUT"], told["SSL_CERT_FILE"]) == ("one.test", "7", "/a/ca.pem")
    assert told["UV_INDEX_STRATEGY"] == "unsafe-best-match"


def test_where_pip_is_not_configured_uv_keeps_its_own_index(pip_conf):
    assert not {"UV_DEFAULT_INDEX", "UV_INDEX", "UV_FIND_LINKS", "UV_NO_INDEX"} & set(install.uv_environment(PIP))


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """What is run, but for uv, which fails where the test says so."""
    run, found = [], {}

    def recorded(command, **_options):
        command = [str(word) for word in command]
        run.append(command)
        code = found["code"] if command[0] == found.get("uv") else 0
        return subprocess.CompletedProcess(command, code, stdout="{}", stderr="")

    monkeypatch.setattr(install.subprocess, "run", recorded)
    monkeypatch.setattr(install, "uv_environment", lambda _pip: {"UV_INDEX": "http://two.test/simple"})
    monkeypatch.setattr(install.shutil, "which", lambda _name: found.get("uv"))
    return run, found, tmp_path / "environment"


def test_uv_installs_alone_where_it_can(commands):
    run, found, folder = commands
    found.update(uv="/bin/uv", code=0)
    assert install.main(str(folder), "-e", ".") == 0
    (only,) = run
    python = str(folder / "bin/python")
    assert only == ["/bin/uv", "pip", "install", "-q", "--python", python, install.PIP, "-e", "."]
    assert Path(python).exists()


@pytest.mark.parametrize("uv", ["/bin/uv", None])
def test_pip_installs_where_uv_fails_or_cannot_be_had(commands, uv, capsys):
    run, found, folder = commands
    found.update(uv=uv, code=2)
    assert install.main(str(folder), "-e", ".") == 0
    assert run[-1][1:] == ["-m", "pip", "install", "-q", "--no-compile", "-e", "."]
    assert "by pip" in capsys.readouterr().err
