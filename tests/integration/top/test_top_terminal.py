"""`fairlead top` in a terminal, at a server that fails when it is told to: keys, sizes, lost connections, its end."""

import asyncio
import json
import os
import re
import signal
from pathlib import Path

import pytest
from forked import FAIRLEAD, fork
from live_stand_in import document, key_file, live_stand_in, tenant
from terminal_rig import terminal

COLOUR = re.compile(rb"\x1b\[(?:[0-9;]*;)?[34][0-7](?:;[0-9;]*)?m")
CTRL_C = "\x03"
ESC = "\x1b"


def two_tenants():
    return document(
        {"modest": tenant(share=[0.25, 0.2, 0.1], queued=4), "greedy": tenant(share=[0.75, 0.8, 0.9], refused=2)}
    )


def at(stand_in, folder):
    return ("top", "--url", stand_in.url, "--key-file", key_file(folder))


def row_numbers(shown, *names):
    """At which lines the rows of these names stand."""
    return [next(number for number, line in enumerate(shown.lines) if line.startswith(name)) for name in names]


async def test_it_shows_tenants_tiers_backends_and_the_queue(tmp_path):
    async with live_stand_in(two_tenants()) as stand_in:
        stand_in.requests = [
            {"id": "r-1", "state": "queued", "pool": "default", "tenant": "modest", "age_s": 2.0,
             "phases": {"queue_s": 2.0}, "waits": {"text": "the slots are full", "start_s": 1.5}},
            {"id": "r-2", "state": "running", "pool": "default", "tenant": "greedy", "age_s": 9.0, "backend": "b0",
             "phases": {"queue_s": 1.0, "prefill_s": 0.5, "decode_s": 7.5}, "waits": None},
        ]  # fmt: skip
        async with terminal(*at(stand_in, tmp_path), width=200) as shown:
            await shown.shows("stand-in", "leader", "oldest wait 2.5s", "812 tokens/s", "greedy", "modest", "75.0%")
            shown.press("2")
            await shown.shows("GAP", "4096", "0.970")
            shown.press("3")
            await shown.shows("b0", "ready", "slots", "3/8", "5000/20.0k", "31ms")
            shown.press("\t")
            await shown.shows("r-1", "the slots are full", "r-2", "7.5s")
            first, second = row_numbers(shown, "r-2", "r-1")
            assert first < second, "the longest stands first"


async def test_rows_are_sorted_filtered_paused_and_opened_by_keys(tmp_path):
    async with live_stand_in(two_tenants()) as stand_in:
        stand_in.requests = [{"id": "r-1", "state": "queued", "pool": "default", "tenant": "modest", "age_s": 2.0}]
        async with terminal(*at(stand_in, tmp_path)) as shown:
            await shown.shows("down by SHARE", "greedy", "modest")
            assert row_numbers(shown, "greedy", "modest") == [4, 5]
            shown.press("r")
            await shown.until(lambda: row_numbers(shown, "modest", "greedy") == [4, 5])
            shown.press("s")
            await shown.shows("by DUE")
            shown.press("S", "S", "S", "S")
            await shown.shows("by QUEUED")
            shown.press("w")
            await shown.shows("shares of 1 min", "80.0%", without="75.0%")
            shown.press("/modEST\r")
            await shown.shows("filter: modEST", "modest", without="greedy")
            shown.press("\r")
            await shown.shows("tenant modest", "cached_ratio", "50.0%", "r-1")
            shown.press(ESC)
            await shown.shows("filter: modEST", without="cached_ratio")
            shown.press(ESC)
            await shown.shows("greedy")
            shown.press("?")
            await shown.shows("the next pool")
            shown.press("x")
            await shown.shows("greedy", without="the next pool")


async def test_in_a_pause_the_screen_stands_still_and_the_connection_goes_on(tmp_path):
    async with live_stand_in(two_tenants()) as stand_in, terminal(*at(stand_in, tmp_path)) as shown:
        await shown.shows("modest")
        shown.press("p")
        await shown.shows("PAUSED")
        stand_in.document = document({"late": tenant()})
        await stand_in.drop()
        await shown.shows("PAUSED", "the connection is back", "modest", without="late")
        shown.press("p")
        await shown.shows("late", without="PAUSED")


async def test_a_patch_changes_what_is_shown_and_removes_what_is_gone(tmp_path):
    async with live_stand_in(two_tenants()) as stand_in, terminal(*at(stand_in, tmp_path)) as shown:
        await shown.shows("greedy", "modest")
        changed = {"tenants": {"modest": {"queued": 77}, "greedy": None}, "tokens_per_s": 4321.0}
        await stand_in.patch({"pools": {"default": changed}})
        await shown.shows("modest", "77", "4321 tokens/s", without="greedy")


@pytest.mark.parametrize(("height", "width"), [(24, 40), (8, 20), (7, 200), (60, 250)])
async def test_it_follows_the_size_of_the_terminal(tmp_path, height, width):
    async with live_stand_in(two_tenants()) as stand_in, terminal(*at(stand_in, tmp_path)) as shown:
        await shown.shows("modest", "TOKENS/S")
        shown.resize(height=height, width=width)
        await shown.until(lambda: "q quit" in shown.lines[-1] and "greedy" in shown.text)
        shown.resize(height=2, width=15)
        await shown.shows("too small")
        shown.resize(height=24, width=120)
        await shown.shows("modest", "TOKENS/S", without="too small")


async def test_a_lost_connection_is_said_and_made_again(tmp_path):
    async with live_stand_in(two_tenants()) as stand_in, terminal(*at(stand_in, tmp_path)) as shown:
        await shown.shows("modest")
        stand_in.refuses = 503
        await stand_in.drop()
        await shown.shows("CONNECTION LOST", "it says no", "modest")
        shown.press("/")  # keys go on meanwhile
        await shown.shows("filter: _")
        shown.press(ESC)
        stand_in.document = document({"newcomer": tenant()})
        stand_in.refuses = None
        await shown.shows("the connection is back", "newcomer", without="modest")


@pytest.mark.parametrize("way", ["q", CTRL_C, signal.SIGTERM, signal.SIGHUP])
async def test_the_terminal_is_afterwards_as_before(tmp_path, way):
    codes = {"q": 0, CTRL_C: 130, signal.SIGTERM: 128 + 15, signal.SIGHUP: 128 + 1}
    there = live_stand_in(two_tenants())
    async with there as stand_in, terminal(*at(stand_in, tmp_path), TERM="xterm-256color") as shown:
        before = shown.attributes()
        await shown.until(lambda: b"modest" in shown.raw)
        assert shown.attributes() != before, "it reads single keys"
        if isinstance(way, str):
            shown.press(way)
        else:
            shown.process.send_signal(way)
        assert await shown.end() == codes[way]
        assert shown.attributes() == before
        switched, cursor = shown.raw.rfind(b"\x1b[?1049l"), shown.raw.rfind(b"\x1b[?25h")
        assert switched > shown.raw.rfind(b"\x1b[?1049h"), "the screen that was there before is shown"
        assert cursor > shown.raw.rfind(b"\x1b[?25l"), "the cursor is seen"
        assert b"Traceback" not in shown.raw


async def test_no_color_means_no_colour(tmp_path):
    """Of a gateway that refuses: a row that warns is yellow, and the lost connection red."""
    async with live_stand_in(two_tenants()) as stand_in:
        for no_color in ("1", ""):
            async with terminal(*at(stand_in, tmp_path), NO_COLOR=no_color) as shown:
                await shown.shows("greedy")
                await stand_in.drop()
                await shown.shows("the connection is back")
            assert bool(COLOUR.search(shown.raw)) == (not no_color)


@pytest.mark.parametrize("locale", ["C.UTF-8", "POSIX"])
async def test_names_do_not_command_the_terminal(tmp_path, locale):
    """The name of a tenant, a backend or a gateway moves nothing and hides nothing."""
    evil = ["\x1b]0;owned\x07", "\x9b2Jowned", "a\rowned", "b\nowned", "\u202eowned", "\u200bowned", "漢字漢字owned"]
    begin = document({name: tenant(waits=name) for name in evil}, policy=evil[0], refused={evil[1]: 3})
    begin["pools"]["default"]["backends"] = {evil[1]: {"available": False, "trouble": evil[0]}}
    begin["gateway"]["name"] = evil[0]
    async with live_stand_in(begin) as stand_in:
        stand_in.requests = [{"id": name, "state": "queued", "pool": "default"} for name in evil]
        async with terminal(*at(stand_in, tmp_path), is_new=True, LC_ALL=locale, PYTHONUTF8="0") as shown:
            await shown.shows("?]0;owned?", "?2Jowned", "?owned")
            shown.press("3")
            await shown.shows("away", "?2Jowned")
            shown.press("4")
            await shown.shows("b?owned")
            shown.press("1\r")
            await shown.shows("cached_ratio")
            shown.press("q")
            assert await shown.end() == 0
    for bad in (b"\x1b]0;owned", b"\x9b2J", b"a\rowned", b"b\nowned", "\u202e".encode(), "\u200b".encode()):
        assert bad not in shown.raw


async def test_a_thousand_tenants_cost_little_and_are_all_reached(tmp_path):
    names = [f"tenant-{number:04}" for number in range(1000)]
    begin = document({name: tenant(share=[0.001] * 3) for name in names})
    async with live_stand_in(begin) as stand_in, terminal(*at(stand_in, tmp_path)) as shown:
        await shown.shows("tenants 1000", "tenant-0000")
        shown.press("\x1b[4~")  # End
        await shown.shows("tenant-0999", without="tenant-0000")
        began_s, written, seconds = shown.cpu_s(), len(shown.raw), 3
        for second in range(seconds):
            tenants = {name: {"queued": second, "share": [0.002 * second] * 3} for name in names}
            await stand_in.patch({"at": 1_790_000_001.0 + second, "pools": {"default": {"tenants": tenants}}})
            await asyncio.sleep(1)
        used_s = (shown.cpu_s() - began_s) / seconds
        print(f"1,000 tenants that all change: {used_s * 1e3:.1f} ms of CPU a second")  # noqa: T201 - shown by -s
        assert used_s < 0.2, "a fifth of a core"
        assert (len(shown.raw) - written) / seconds < 20_000, "only what changes on the screen is written"


async def test_it_says_what_is_missing(tmp_path):
    async with live_stand_in(two_tenants()) as stand_in:
        async with terminal(*at(stand_in, tmp_path), TERM="no-such-terminal") as shown:
            assert await shown.end() == 1
            assert "the terminal 'no-such-terminal' is not known" in shown.text
        async with terminal(*at(stand_in, tmp_path), TERM="dumb") as shown:
            assert await shown.end() == 1
            assert "no cursor that can be placed" in shown.text
        key = key_file(tmp_path, "another")
        async with terminal("top", "--url", stand_in.url, "--key-file", key) as shown:
            assert await shown.end() == 1
            assert "answers 401: it says no" in shown.text
    async with terminal("top", "--url", stand_in.url, "--key-file", key) as shown:
        assert await shown.end() == 1
        assert "does not answer as an admin port" in shown.text


async def test_without_a_terminal_it_prints_once_or_says_how(tmp_path):
    async with live_stand_in(two_tenants()) as stand_in:
        arguments = at(stand_in, tmp_path)
        code, out, errors = await piped(*arguments)
        assert (code, out) == (1, "")
        assert "fairlead top --once --json" in errors
        for options in (["--once"], ["--json"], ["--once", "--json"]):
            code, out, _ = await piped(*arguments, *options)
            assert (code, json.loads(out)) == (0, stand_in.document)
        async with terminal(*arguments, "--once") as shown:
            assert await shown.end() == 0
            await shown.shows("TENANT", "greedy", "75.0%")


async def piped(*arguments):
    """Exit code, standard output and standard error of a command that has no terminal."""
    process = await fork(FAIRLEAD, *arguments, folder=Path.cwd(), environment=dict(os.environ))
    out, errors = await process.communicate()
    return process.returncode, out.decode(), errors.decode()
