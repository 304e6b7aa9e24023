"""A network of two ends, of which the far one is a namespace of its own. For root only."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Self

CLONE_NEWNET = 0x40000000


@cache
def missing() -> str:
    """Why no network can be made here; empty if one can."""
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    if not (shutil.which("ip") and shutil.which("tc")):
        return "there is no ip or tc (Debian: apt-get install iproute2)"
    name = f"try-{uuid.uuid4().hex[:6]}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if tried.returncode:
        return f"this machine makes no network namespace: {tried.stderr.strip()}"
    run("ip", "netns", "del", name)
    return ""


@cache
def no_netem() -> str:
    """Why no packets can be lost at random here; empty if they can."""
    why = missing()
    if why:
        return why
    with Network() as network:
        try:
            network.lose("0%", "0ms")
        except subprocess.CalledProcessError:
            return "this kernel has no netem to lose packets at random with"
    return ""


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
        run("ip", "link", "add", self.near, "type", "veth", "peer", "name", self.far)
        run("ip", "link", "set", self.far, "netns", self.name)
        run("ip", "addr", "add", f"{self.near_address}/24", "dev", self.near)
        run("ip", "link", "set", self.near, "up")
        inside = ("ip", "-n", self.name)
        run(*inside, "addr", "add", f"{self.far_address}/24", "dev", self.far)
        run(*inside, "link", "set", self.far, "up")
        run(*inside, "link", "set", "lo", "up")
        return self

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

    def lose(self, share: str, delay: str) -> None:
        """Both ways, at random; see ``tc-netem(8)``."""
        how = ("root", "netem", "loss", share, "delay", delay)
        run("tc", "qdisc", "replace", "dev", self.near, *how)
        inside = ("ip", "netns", "exec", self.name)
        run(*inside, "tc", "qdisc", "replace", "dev", self.far, *how)

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
