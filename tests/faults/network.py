"""A network of two ends, of which the far one is a namespace of its own. For root only."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Self

CLONE_NEWNET = 0x40000000
TUNNEL = "/dev/net/tun"
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


@cache
def missing() -> str:
    """Why no network can be made here; empty if one can."""
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    if not shutil.which("ip"):
        return "there is no ip (Debian: apt-get install iproute2)"
    name = f"try-{uuid.uuid4().hex[:6]}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        return f"this machine makes no network namespace: {tried.stderr.strip()}"
    run("ip", "netns", "del", name)
    return ""


@cache
def no_tunnel() -> str:
    """Why no packets can be lost at random here; empty if they can."""
    why = missing()
    if not why and not os.access(TUNNEL, os.R_OK | os.W_OK):
        return f"there is no {TUNNEL} to lose packets with"
    return why


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


class Network:
    """A cable between this machine and a namespace, gone when the ``with`` block ends."""

    def __init__(self) -> None:
        name = uuid.uuid4().hex[:6]
        self.name, self.near, self.far = f"jobs-{name}", f"near-{name}", f"far-{name}"
        subnet = f"10.{200 + int(name[:2], 16) % 50}.{int(name[2:4], 16)}"
        self.near_address, self.far_address = f"{subnet}.1", f"{subnet}.2"

    def __enter__(self) -> Self:
        run("ip", "netns", "add", self.name)
        self._lay()
        run("ip", "link", "set", self.far, "netns", self.name)
        run("ip", "addr", "add", f"{self.near_address}/24", "dev", self.near)
        run("ip", "link", "set", self.near, "up")
        inside = ("ip", "-n", self.name)
        run(*inside, "addr", "add", f"{self.far_address}/24", "dev", self.far)
        run(*inside, "link", "set", self.far, "up")
        run(*inside, "link", "set", "lo", "up")
        return self

    def _lay(self) -> None:
        run("ip", "link", "add", self.near, "type", "veth", "peer", "name", self.far)

    def __exit__(self, *error: object) -> None:
        subprocess.run(["ip", "link", "del", self.near], capture_output=True)
        run("ip", "netns", "del", self.name)

    def unplug(self) -> None:
        """Nothing passes, and nobody is told."""
        run("ip", "link", "set", self.near, "down")

    def lose_answers(self) -> None:
        """Nothing reaches the far end any more; what it sends arrives."""
        self._neighbour("replace", "lladdr", "02:00:00:00:00:01", "nud", "permanent")

    def mend(self) -> None:
        """As it was before :meth:`unplug` or :meth:`lose_answers`."""
        run("ip", "link", "set", self.near, "up")
        with contextlib.suppress(subprocess.CalledProcessError):
            self._neighbour("del")

    def _neighbour(self, verb: str, *how: str) -> None:
        run("ip", "neigh", verb, self.far_address, "dev", self.near, *how)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Processes that this thread starts in the block have the far end only."""
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/proc/thread-self/ns/net").open() as here:
            with Path(f"/run/netns/{self.name}").open() as there:
                assert libc.setns(there.fileno(), CLONE_NEWNET) == 0, os.strerror(
                    ctypes.get_errno()
                )
            try:
                yield
            finally:
                assert libc.setns(here.fileno(), CLONE_NEWNET) == 0


class BadLine(Network):
    """A cable that this process carries packet by packet, so that it can be late and lose some: a
    kernel need not have netem for it."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__()
        self.lost, self.carried = 0, 0
        self._share, self._delay = 0.0, 0.0
        self._draw = random.Random(seed)
        self._carrier = threading.Thread(target=self._carry, name="line", daemon=True)
        self._end, self._ended = os.pipe()

    def lose(self, share: float, delay: float) -> None:
        """From now on, both ways: each packet is lost with this probability, or comes so many
        seconds later."""
        self._share, self._delay = share, delay

    def __enter__(self) -> Self:
        super().__enter__()
        self._carrier.start()
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._ended)
        self._carrier.join()
        os.close(self._end)
        for device in self._devices:
            os.close(device)
        super().__exit__(*error)

    def _lay(self) -> None:
        self._devices = _tunnel(self.near), _tunnel(self.far)

    def _carry(self) -> None:
        near, far = self._devices
        other = {near: far, far: near}
        on_the_way: deque[tuple[float, int, bytes]] = deque()
        while True:
            wait = max(on_the_way[0][0] - time.monotonic(), 0.0) if on_the_way else None
            readable, _, _ = select.select([near, far, self._end], [], [], wait)
            if self._end in readable:
                return
            for device in readable:
                packet = os.read(device, 65_536)
                if self._draw.random() < self._share:
                    self.lost += 1
                else:
                    on_the_way.append((time.monotonic() + self._delay, other[device], packet))
            while on_the_way and on_the_way[0][0] <= time.monotonic():
                _, device, packet = on_the_way.popleft()
                with contextlib.suppress(OSError):  # not up yet
                    os.write(device, packet)
                    self.carried += 1


def _tunnel(name: str) -> int:
    device = os.open(TUNNEL, os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return device
