"""Servers by the addresses of a name."""

import asyncio
import socket
from contextlib import asynccontextmanager

from backends.discovery import Dns

NOWHERE = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@asynccontextmanager
async def watching(source, monkeypatch, *answers):
    """What the source has told so far, while the resolver gives these answers, the last one for ever."""
    left = list(answers)

    async def getaddrinfo(host, port, **_options):
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return [(socket.AF_INET6 if ":" in each else socket.AF_INET, 1, 6, "", (each, port)) for each in answer]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo, raising=False)
    told = []
    task = asyncio.create_task(source.watch(told.append))
    try:
        yield told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - of many things
            await asyncio.sleep(0.001)


def source(**options):
    return Dns("vllm.llm.svc", 8000, every_s=0.001, **options)


async def test_every_address_of_the_name_is_a_server(monkeypatch):
    async with watching(source(), monkeypatch, ["10.0.0.1", "10.0.0.2", "10.0.0.1", "fd00::1"]) as told:
        await until(lambda: told)
        assert told == [frozenset({"http://10.0.0.1:8000", "http://10.0.0.2:8000", "http://[fd00::1]:8000"})]


async def test_a_change_is_told_and_the_same_answer_in_another_order_is_none(monkeypatch):
    answers = [["10.0.0.1", "10.0.0.2"], ["10.0.0.2", "10.0.0.1"], ["10.0.0.2"]]
    async with watching(source(scheme="https"), monkeypatch, *answers) as told:
        await until(lambda: len(told) == 2)
        assert told[1] == frozenset({"https://10.0.0.2:8000"})


async def test_a_name_without_addresses_keeps_those_that_it_had_and_is_logged_once(monkeypatch, caplog):
    async with watching(source(), monkeypatch, ["10.0.0.1"], NOWHERE, [], NOWHERE, ["10.0.0.3"]) as told:
        await until(lambda: len(told) == 2)
        assert told == [frozenset({"http://10.0.0.1:8000"}), frozenset({"http://10.0.0.3:8000"})]
    assert len([record for record in caplog.records if "no address" in record.message]) == 2  # an answer lay between


async def test_the_name_of_this_machine_is_found_by_the_real_resolver():
    told = []
    task = asyncio.create_task(Dns("localhost", 8000).watch(told.append))
    await until(lambda: told)
    task.cancel()
    assert "http://127.0.0.1:8000" in told[0]
