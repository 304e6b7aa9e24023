"""The root of the tree: signals, restarts, hard time limits. It has one thread, no connection to
the database, and never runs a handler."""

from __future__ import annotations

import gc
import logging
import os
import signal
import time
from collections.abc import Sequence

from ..events import say
from ..heartbeat.maintenance import StandingDuty
from ..heartbeat.scheduler import Look
from ..ipc.messages import AttemptEnd, Verb, refuse
from ..ipc.pipes import Link, Message, describe_exit, kill
from ..ipc.scoreboard import InHand
from ..options import FORCED, RECYCLE, Options
from ..timeouts.limits import TOLD
from .children import Child, Isolated
from .process_tree import Tree
from .watchdog import TICK, Watch

STOP_GRACE = 0.5
"""Seconds from the stop raised in handlers to the kill."""

GOODBYE = 2.0
"""Seconds that the heartbeat gets at the end to settle what was killed."""


class Supervisor:
    """Runs the tree until it is drained. Call :meth:`run` once, in a process without threads."""

    def __init__(
        self, options: Options, duties: Sequence[StandingDuty] = (), look: Look | None = None
    ) -> None:
        self._options = options
        self._tree = Tree(options, duties, look)
        self._watch = Watch(self._tree, options.lease)
        self._burials: dict[int, Message] = {}
        self._draining = False
        self._stop_at = float("inf")
        self._kill_at = float("inf")
        self._forced = False
        self._heart_at = 0.0

    def run(self) -> int:
        """Start everything, keep it alive, drain on a signal; returns the exit code."""
        self._tree.catch_signals()
        gc.freeze()  # children share the pages of what is loaded now
        say("supervisor_started", logging.INFO, pid=os.getpid(), processes=self._options.processes)
        while True:
            now = time.monotonic()
            self._start_heart(now)
            self._start_children(now)
            if self._nothing_left():
                break
            self._wait(now)
            self._bury_the_dead()
            self._look(time.monotonic())
        self._say_goodbye()
        code = FORCED if self._forced else 0
        say("supervisor_stopped", logging.INFO, pid=os.getpid(), exit_code=code)
        return code

    def _start_children(self, now: float) -> None:
        for child in self._startable():
            if now >= child.start_at:
                self._tree.start(child)

    def _startable(self) -> list[Child]:
        # A new process would end the burst before it can see what the dead one held.
        if self._draining or (self._options.burst and self._burials):
            return []
        return [child for child in self._tree.children if child.wanted and not child.pid]

    def _nothing_left(self) -> bool:
        return not any(child.pid or child.wanted for child in self._tree.children) or (
            self._draining and not any(child.pid for child in self._tree.children)
        )

    def _wait(self, now: float) -> None:
        children = self._tree.children
        urgent = any(child.slot.watched for child in children)
        until = min(
            [now + (TICK if urgent else 1.0), self._stop_at, self._kill_at]
            + [child.start_at for child in self._startable()]
            + [self._watch.next_look(child, now) for child in children if child.slot.worker]
        )
        for key, _ in self._tree.selector.select(max(until - now, 0.0)):
            if key.fileobj is self._tree.woken:
                self._hear_signals()
            elif isinstance(key.fileobj, Link):
                self._hear(key.fileobj)

    def _hear_signals(self) -> None:
        try:
            numbers = self._tree.woken.recv(4096)
        except BlockingIOError:
            return
        for number in numbers:
            if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                self._drain(signal.Signals(number).name)

    def _drain(self, why: str) -> None:
        if self._draining:
            say("second_signal", logging.WARNING, signal=why)
            self._kill_all("released by a second signal")
            return
        self._draining = True
        say("draining", logging.INFO, signal=why, timeout=self._options.drain_timeout)
        self._stop_at = time.monotonic() + self._options.drain_timeout
        for child in self._tree.children:
            child.wanted = False
            self._tell_to_drain(child)

    def _hear(self, link: Link) -> None:
        try:
            message = link.receive(0)
        except EOFError:
            self._tree.forget(link)  # its end is told by waitpid
            return
        if message is not None:
            self._obey(link, message)

    def _obey(self, link: Link, message: Message) -> None:
        match message["verb"]:
            case Verb.BURIED:
                self._burials.pop(message["worker"], None)
            case Verb.DRAIN:
                for child in self._tree.children:
                    if child.slot.worker == message["worker"]:  # and not its successor
                        self._drain_child(child)
            case Verb.RECYCLES:
                for child in self._tree.children:
                    if child.link is link:
                        self._tell_to_drain(child)
            case Verb.ISOLATE:
                self._tree.isolate(link, message)
                for child in self._tree.children:
                    if child.link is link and child.leaving:
                        self._tell_to_drain(child)  # asked for a moment before the drain
                if self._forced:
                    self._tell_to_stop()  # or before the stop
            case _:
                refuse(message)

    def _drain_child(self, child: Child) -> None:
        if child.wanted and not child.asked_to_drain:
            say("draining", logging.INFO, worker=child.slot.worker, asked="by an operator")
            child.asked_to_drain = True
            self._tell_to_drain(child)

    def _tell_to_drain(self, child: Child) -> None:
        child.leaving = True
        links = [one.link for one in self._tree.isolated.values() if one.child is child]
        for link in (child.link, *links):
            if link is not None:
                link.send(verb=Verb.DRAIN)

    def _bury_the_dead(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            kill(pid)  # what its handlers started must not run beside the next attempt
            if pid in self._tree.isolated:
                self._isolated_ended(self._tree.isolated.pop(pid), status)
            elif pid == self._tree.heart:
                self._heart_died(status)
            else:
                for child in self._tree.children:
                    if child.pid == pid:
                        self._child_died(child, status)

    def _isolated_ended(self, one: Isolated, status: int) -> None:
        settled = one.said_settled()
        end = None if settled else one.end or AttemptEnd.CRASHED
        one.link.close()
        reason = one.reason or f"its process ended with {describe_exit(status)}"
        if end is AttemptEnd.CRASHED and not one.orphaned:
            say("isolated_job_died", logging.WARNING, job_id=one.job, reason=reason)
        if one.child.link is not None and not one.orphaned:
            one.child.link.send(
                verb=Verb.ISOLATED, index=one.index, end=end, reason=reason, seconds=one.seconds
            )

    def _heart_died(self, status: int) -> None:
        say("heartbeat_died", logging.ERROR, reason=describe_exit(status))
        self._tree.close(self._tree.heart_link)
        self._tree.heart = 0
        self._heart_at = max(time.monotonic(), self._heart_at + 1.0)  # no fork loop

    def _start_heart(self, now: float) -> None:
        if self._tree.heart or now < self._heart_at:
            return
        self._tree.start_heart()
        self._heart_at = now
        for message in self._burials.values():
            self._send_heart(message)

    def _child_died(self, child: Child, status: int) -> None:
        self._tree.close(child.link)
        in_hand = child.slot.in_hand()
        worker, pid = child.slot.worker, child.pid
        for isolated_pid, one in list(self._tree.isolated.items()):
            if one.child is child:
                one.orphaned = True
                kill(isolated_pid)
        code = os.waitstatus_to_exitcode(status)
        if worker:
            self._bury(child, worker, in_hand, status)
        because, guilty = child.killed_because, sorted(job for job, _ in child.killed_for)
        child.died()
        # A process that ends in order has closed its row; os._exit(0) in a handler has not.
        in_order = code in (0, RECYCLE) and not worker
        if child.asked_to_drain:
            self._replace_drained(child)
        elif in_order and code == 0:
            child.wanted = False
        if in_order:
            child.quick_deaths = 0
        else:
            child.pause_before_restart()
            if because:
                fields = {"pid": pid, "worker": worker, "reason": because}
                say("process_killed", logging.WARNING, **fields, overdue=guilty)
            else:
                end = describe_exit(status)
                say("process_died", logging.ERROR, pid=pid, worker=worker, reason=end)

    def _replace_drained(self, child: Child) -> None:
        """An operator who asked one process to drain wants a new one; who asked all, an end."""
        child.wanted = any(
            other.wanted and not other.asked_to_drain for other in self._tree.children
        )
        child.asked_to_drain = not child.wanted

    def _bury(self, child: Child, worker: int, in_hand: list[InHand], status: int) -> None:
        message = child.burial(worker, in_hand, status) | {
            "status": "stopped" if self._draining else "lost",
            "patience": GOODBYE if self._draining else self._options.lease,
        }
        self._burials[worker] = message
        self._send_heart(message)

    def _send_heart(self, message: Message) -> None:
        if self._tree.heart and self._tree.heart_link is not None:
            self._tree.heart_link.send(**message)

    def _look(self, now: float) -> None:
        if now >= self._kill_at:
            self._kill_all("the time to drain was over")
        elif now >= self._stop_at:
            self._stop_all(now)
        self._watch.look(now)

    def _stop_all(self, now: float) -> None:
        self._forced = True
        self._stop_at, self._kill_at = float("inf"), now + STOP_GRACE
        self._tell_to_stop()
        for child in self._tree.children:
            child.killed_because = child.killed_because or "the time to drain was over"
            if child.link is not None:
                child.link.send(verb=Verb.STOP)

    def _tell_to_stop(self) -> None:
        for pid, one in self._tree.isolated.items():
            one.link.send(verb=Verb.STOP)
            os.kill(pid, TOLD)

    def _kill_all(self, reason: str) -> None:
        self._forced = True
        self._stop_at = self._kill_at = float("inf")
        for child in self._tree.children:
            if child.pid:
                child.killed_because = reason
                kill(child.pid)

    def _say_goodbye(self) -> None:
        """Let the heartbeat settle what was killed, then end it."""
        until = time.monotonic() + GOODBYE
        link = self._tree.heart_link
        if not self._tree.heart or link is None:  # it died a moment ago; the reaper does its work
            self._tree.close_all()
            return
        while self._burials and time.monotonic() < until:
            try:
                message = link.receive(0.1)
            except EOFError:
                break
            if message is not None:
                self._obey(link, message)
        link.send(verb=Verb.QUIT)
        while time.monotonic() < until + 1.0:
            if os.waitpid(self._tree.heart, os.WNOHANG)[0]:
                break
            time.sleep(0.01)
        else:
            kill(self._tree.heart)
            os.waitpid(self._tree.heart, 0)
        for pid in list(self._tree.isolated):
            kill(pid)
            os.waitpid(pid, 0)
        self._tree.close_all()
