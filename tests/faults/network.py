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
from contextlib import ExitStack, contextmanager
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
    if why:
        return why
    try:
        with BadLine():
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        return f"this machine makes no {TUNNEL}: {error}"


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


class Network:
    """A line between this machine and a namespace, gone when the ``with`` block ends."""

    def __init__(self) -> None:
        name = uuid.uuid4().hex[:6]
        self.name, self.near, self.far = f"jobs-{name}", f"near-{name}", f"far-{name}"
        subnet = f"10.{200 + int(name[:2], 16) % 50}.{int(name[2:4], 16)}"
        self.near_address, self.far_address = f"{subnet}.1", f"{subnet}.2"

    def __enter__(self) -> Self:
        with ExitStack() as made:
            run("ip", "netns", "add", self.name)
            made.callback(run, "ip", "netns", "del", self.name)
            self._lay(made)
            run("ip", "link", "set", self.far, "netns", self.name)
            run("ip", "addr", "add", f"{self.near_address}/24", "dev", self.near)
            run("ip", "link", "set", self.near, "up")
            inside = ("ip", "-n", self.name)
            run(*inside, "addr", "add", f"{self.far_address}/24", "dev", self.far)
            run(*inside, "link", "set", self.far, "up")
            run(*inside, "link", "set", "lo", "up")
            self._made = made.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._made.close()

    def _lay(self, made: ExitStack) -> None:
        """Make the devices of both ends, and have them removed with the rest."""
        raise NotImplementedError

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


class Cable(Network):
    """One that the kernel carries, and that can be pulled."""

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

    def _lay(self, made: ExitStack) -> None:
        run("ip", "link", "add", self.near, "type", "veth", "peer", "name", self.far)
        made.callback(subprocess.run, ["ip", "link", "del", self.near], capture_output=True)

    def _neighbour(self, verb: str, *how: str) -> None:
        run("ip", "neigh", verb, self.far_address, "dev", self.near, *how)


class BadLine(Network):
    """One that this process carries packet by packet, so that they can be late and some be lost: a
    kernel need not have netem for it."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = self.carried = 0
        self._share = self._delay = 0.0

    def lose(self, share: float, delay: float) -> None:
        """From now on, both ways: each packet is lost with this probability, or comes so many
        seconds later."""
        self._share, self._delay = share, delay

    def _lay(self, made: ExitStack) -> None:
        near, far = (_tunnel(name, made) for name in (self.near, self.far))
        over, end = os.pipe()
        made.callback(os.close, over)
        carrier = threading.Thread(target=self._carry, args=(near, far, over), name="line")
        carrier.start()
        made.callback(carrier.join)
        made.callback(os.close, end)

    def _carry(self, near: int, far: int, over: int) -> None:
        other = {near: far, far: near}
        on_the_way: deque[tuple[float, int, bytes]] = deque()
        while True:
            wait = max(on_the_way[0][0] - time.monotonic(), 0.0) if on_the_way else None
            readable, _, _ = select.select([near, far, over], [], [], wait)
            if over in readable:
                return
            for device in readable:
                packet = os.read(device, 65_536)
                if random.random() < self._share:
                    self.lost += 1
                else:
                    on_the_way.append((time.monotonic() + self._delay, other[device], packet))
            while on_the_way and on_the_way[0][0] <= time.monotonic():
                _, device, packet = on_the_way.popleft()
                with contextlib.suppress(OSError):  # the other end is not up
                    os.write(device, packet)
                    self.carried += 1


def _tunnel(name: str, made: ExitStack) -> int:
    device = os.open(TUNNEL, os.O_RDWR | os.O_CLOEXEC)
    made.callback(os.close, device)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return device
