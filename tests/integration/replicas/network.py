"""Network namespaces for replicas, one each, behind one bridge, in which they can be kept apart, one way or both.

To make them takes CAP_NET_ADMIN and the tool `ip`; `Network.is_possible()` says whether they can be made.
"""

import os
import shutil
import subprocess
from typing import Self

UNUSED = "02:00:00:00:00:01"  # a hardware address that no interface has: what is sent there is lost without a word


class Network:
    """So many namespaces. This machine has the address `host` in their network."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._tag = f"fl{os.getpid() % 100_000}"
        self._prefix = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self.host = f"{self._prefix}.254"

    @staticmethod
    def is_possible() -> bool:
        if shutil.which("ip") is None:
            return False
        probe = f"fl{os.getpid() % 100_000}probe"
        made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
        return made.returncode == 0

    def address(self, number: int) -> str:
        return f"{self._prefix}.{number + 1}"

    def runner(self, number: int) -> tuple[str, ...]:
        """What begins the command line of a process in this namespace."""
        return ("ip", "netns", "exec", self._name(number))

    def cut(self, one: int, other: int) -> None:
        """What these two send to each other is lost from now on."""
        self.silence(one, other)
        self.silence(other, one)

    def silence(self, one: int, other: int) -> None:
        """What one sends to the other is lost from now on; what the other sends still arrives."""
        neighbour = ("lladdr", UNUSED, "dev", "eth0", "nud", "permanent")
        _ip("-n", self._name(one), "neigh", "replace", self.address(other), *neighbour)

    def heal(self, one: int, other: int) -> None:
        """All that these two send to each other arrives again."""
        for here, there in ((one, other), (other, one)):
            gone = ("ip", "-n", self._name(here), "neigh", "del", self.address(there), "dev", "eth0")
            subprocess.run(gone, check=False, capture_output=True)  # it is not there where that direction was not cut

    def unplug(self, number: int) -> None:
        """All that this one sends and is sent is lost from now on, without a word."""
        _ip("link", "set", self._outside(number), "nomaster")

    def plug(self, number: int) -> None:
        _ip("link", "set", self._outside(number), "master", self._tag)

    def __enter__(self) -> Self:
        try:
            _ip("link", "add", self._tag, "type", "bridge")
            _ip("addr", "add", f"{self.host}/24", "dev", self._tag)
            _ip("link", "set", self._tag, "up")
            for number in range(self._count):
                self._add(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for number in range(self._count):
            subprocess.run(["ip", "netns", "del", self._name(number)], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._tag], capture_output=True, check=False)

    def _add(self, number: int) -> None:
        name, outside = self._name(number), self._outside(number)
        _ip("netns", "add", name)
        _ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", outside, "master", self._tag, "up")
        _ip("-n", name, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")

    def _name(self, number: int) -> str:
        return f"{self._tag}r{number}"

    def _outside(self, number: int) -> str:
        """The end of its cable that is in the bridge."""
        return f"{self._tag}v{number}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
