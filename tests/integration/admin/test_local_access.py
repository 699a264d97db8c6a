"""A gateway without a configuration: commands of its user on its machine sign in by its socket, and no others."""

import asyncio
import json
import os
import re
import signal
import socket
import stat
import tempfile
from pathlib import Path

import aiohttp
import pytest
from admin_rig import ROOT, admin
from forked import FAIRLEAD, fork
from gateway_rig import scripted

from gateway.admin.access import local_socket
from gateway.admin.access.local_access import LocalAccess
from gateway.admin.access.local_socket import ASK_KEY, ASK_LINK, ask_local, is_private, local_ports
from gateway.admin.access.one_time_links import LINKS_MAX, OneTimeLinks
from gateway.admin.command.client import UnreachableError
from gateway.admin.command.target import find_admin
from gateway.admin.routes import Role
from gateway.identity.key_ring import KeyRing

START_S_MAX = 60.0
PORT = 8081
PAGE = re.compile(r"^page: (http://127\.0\.0\.1:(\d+))/#once=(\S+) ", re.MULTILINE)


@pytest.fixture
def runtime(monkeypatch, tmp_path):
    """A login session's folder. Its path is short, as a socket's must be (108 bytes, unix(7))."""
    del tmp_path  # made before another folder for temporary files is set
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.setattr(tempfile, "gettempdir", lambda: folder)
        yield Path(folder)


@pytest.fixture
async def access(runtime):
    """A socket that answers for PORT."""
    opened = LocalAccess(f"http://127.0.0.1:{PORT}", {ASK_KEY: lambda: "the-key", ASK_LINK: lambda: "the-link"})
    assert await opened.start(PORT)
    yield opened
    await opened.stop()


async def asked(question, port=PORT):
    return await asyncio.to_thread(ask_local, port, question)


async def test_it_answers_with_a_key_or_a_link_and_leaves_nothing_behind(runtime, access):
    assert await asked(ASK_KEY) == (f"http://127.0.0.1:{PORT}", "the-key")
    assert await asked(ASK_LINK) == (f"http://127.0.0.1:{PORT}", "the-link")
    assert await asked("anything else") is None
    assert await asked(ASK_KEY, port=PORT + 1) is None
    await access.stop()
    assert local_ports() == []
    assert await asked(ASK_KEY) is None


async def test_no_other_user_can_enter_the_folder_or_open_the_socket(runtime, access):
    folder = runtime / "fairlead"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / f"{PORT}.sock").stat().st_mode) == 0o600


@pytest.mark.parametrize("change", ["open to others", "another's", "a link"])
async def test_a_folder_that_is_not_this_users_alone_is_neither_served_in_nor_asked(runtime, change, monkeypatch):
    """Another user may have made the folder before, to be taken for the gateway, or to be given its key."""
    folders = [runtime / "fairlead", runtime / f"fairlead-{os.geteuid()}"]
    for folder in folders:
        folder.mkdir(mode=0o700)
        if change == "open to others":
            folder.chmod(0o750)
        elif change == "a link":
            folder.rename(runtime / f"real-{folder.name}")
            folder.symlink_to(runtime / f"real-{folder.name}")
    if change == "another's":
        monkeypatch.setattr(local_socket.os, "geteuid", lambda: os.getuid() + 1)
        monkeypatch.setattr(local_socket, "folders", lambda: folders)
    assert not any(is_private(each) for each in folders)
    opened = LocalAccess("http://127.0.0.1:1", {ASK_KEY: lambda: "the-key"})
    with monkeypatch.context() as patched:
        if change == "another's":
            patched.setattr("gateway.admin.access.local_access.folders", lambda: folders)
        assert not await opened.start(PORT)
    assert [each.name for folder in folders for each in folder.iterdir()] == []
    with socket.socket(socket.AF_UNIX) as impostor:
        impostor.bind(str(folders[0] / f"{PORT}.sock"))
        assert local_ports() == []
        assert await asked(ASK_KEY) is None


async def test_a_socket_that_a_killed_gateway_left_is_replaced(runtime, access):
    (runtime / "fairlead").joinpath("9000.sock").touch()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(runtime / "fairlead" / "9001.sock"))
    assert await asked(ASK_KEY, port=9001) is None
    again = LocalAccess("http://127.0.0.1:9001", {ASK_KEY: lambda: "of-9001"})
    assert await again.start(9001)
    assert await asked(ASK_KEY, port=9001) == ("http://127.0.0.1:9001", "of-9001")
    await again.stop()


async def test_commands_find_the_only_gateway_and_ask_which_of_several(runtime, access, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def found(url=None, key_file=None):
        return find_admin(None, url=url, key_file=key_file)

    target = await asyncio.to_thread(found)
    assert (target.url, await asyncio.to_thread(target.key)) == (f"http://127.0.0.1:{PORT}", "the-key")
    assert await asyncio.to_thread(target.make_link) == "the-link"
    await access.stop()
    others = [LocalAccess(f"http://127.0.0.1:{port}", {ASK_KEY: lambda: "other"}) for port in (9001, 9002)]
    assert await others[0].start(9001)
    assert (await asyncio.to_thread(found)).url == "http://127.0.0.1:9001"
    assert await others[1].start(9002)
    with pytest.raises(UnreachableError, match=r"--url http://127\.0\.0\.1:9001 or --url http://127\.0\.0\.1:9002"):
        await asyncio.to_thread(found)
    assert (await asyncio.to_thread(found, "http://localhost:9002")).url == "http://127.0.0.1:9002"
    (tmp_path / "fairlead.admin-key").write_text("of-the-file")
    for target in (
        found(),
        found("http://gateway:9002"),
        found("http://127.0.0.1:9002", tmp_path / "fairlead.admin-key"),
    ):
        assert target.key() == "of-the-file", "a key file is used before another gateway is"
        with pytest.raises(UnreachableError, match="opened with a key"):
            target.make_link()
    for each in others:
        await each.stop()


async def test_with_a_configuration_its_key_is_used_though_a_gateway_elsewhere_has_its_port(runtime, access, tmp_path):
    """Gateways in two network namespaces (containers) may share the folder for temporary files, and have one port."""
    (config := tmp_path / "fairlead.yaml").write_text("admin: {enabled: true}\n")
    key_file = tmp_path / "fairlead.admin-key"
    target = await asyncio.to_thread(find_admin, config, url=None, key_file=None)
    assert await asyncio.to_thread(target.key) == "the-key"
    key_file.write_text("of-the-file")
    target = await asyncio.to_thread(find_admin, config, url=None, key_file=None)
    assert target.key() == "of-the-file"


async def test_a_link_signs_a_command_in_once_and_says_how_to_get_another(tmp_path):
    async with scripted() as backend, admin(tmp_path, backend) as api:
        link = api.rig.gateway.page_link()
        target = find_admin(None, url=link, key_file=None)
        for _ in range(2):  # a watch connects again
            client = await asyncio.to_thread(target.connect)
            me = await asyncio.to_thread(client.ask, "GET", "/me", None)
            assert me.body == {"name": "one-time-link-1", "role": "admin", "group": None, "label": None}
        used = find_admin(None, url=link, key_file=None)
        with pytest.raises(UnreachableError, match=r"opened before.*fairlead admin link"):
            await asyncio.to_thread(used.connect)


def test_links_that_are_never_opened_are_bounded():
    ring = KeyRing(b"s" * 32)
    links = OneTimeLinks(ring, b"s" * 32)
    tokens = [links.make(Role.ADMIN) for _ in range(LINKS_MAX + 1)]
    assert links.open(tokens[0]) is None
    assert links.open(tokens[1]) is not None
    assert links.open(tokens[-1]) is not None


async def test_without_a_configuration_commands_need_nothing_and_another_user_needs_a_link(runtime, tmp_path):
    """`fairlead top` and `fairlead admin` beside `make run`; without the folder they are refused."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
    environment |= {"TMPDIR": str(runtime)}  # another gateway of this user is not found

    async def run(*arguments, **variables):
        process = await fork(FAIRLEAD, *arguments, folder=tmp_path, environment=environment | variables)
        async with asyncio.timeout(START_S_MAX):
            out, error = await process.communicate()
        return process.returncode, out.decode(), error.decode()

    at_once = environment | {"FAIRLEAD_SHUTDOWN__LAME_DUCK_S": "0"}  # no balancer sends it anything
    gateway = await fork(FAIRLEAD, "serve", "--port", "0", folder=tmp_path, environment=at_once)
    try:
        said = ""
        async with asyncio.timeout(START_S_MAX):
            while not (found := PAGE.search(said)):
                said += (await gateway.stderr.readline()).decode()
            assert "fairlead admin link" in (await gateway.stderr.readline()).decode()
        (code, out, _), (_, link, _), (refused, _, why) = await asyncio.gather(
            run("top", "--once", "--json"),
            run("admin", "link"),
            run("admin", "--url", found[1], "state", XDG_RUNTIME_DIR="/nowhere", TMPDIR=str(tmp_path)),
        )
        assert (code, json.loads(out)["gateway"]["embedded_engine"]) == (0, True)
        assert link.startswith(f"{found[1]}/#once=")
        assert (refused, "cannot be read" in why) == (1, True)
        async with aiohttp.ClientSession() as session:
            once = {"once": link.strip().partition("#once=")[2]}
            async with session.post(f"{found[1]}{ROOT}/sign-in", json=once) as reply:
                assert reply.status == 200
    finally:
        gateway.send_signal(signal.SIGTERM)
        await gateway.communicate()
    assert list((runtime / "fairlead").iterdir()) == []
    assert list(tmp_path.iterdir()) == []
