"""Does what the plan says to a fleet and its database, and writes down what was done."""

from __future__ import annotations

import signal
import time
from typing import Any

import psycopg

from . import effects, plan
from .fleet import Tree, signal_session
from .ground import Ground
from .history import Fault
from .plan import Outage, Step

TICK = 0.05
WATCH = 0.1

TERMINATE = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY random() LIMIT %s
"""

# Whoever has had a job for a while: a short one would have ended.
BUSIEST = """
SELECT worker.name FROM django_jobs_job AS job
JOIN django_jobs_worker AS worker ON worker.id = job.worker_id
WHERE job.status = 'running' AND job.claimed_at < clock_timestamp() - interval '50 milliseconds'
GROUP BY worker.name ORDER BY count(*) DESC, worker.name
"""

AT_WORK = """
SELECT worker.name, job.id, job.attempt FROM django_jobs_job AS job
JOIN django_jobs_worker AS worker ON worker.id = job.worker_id
WHERE job.status = 'running' ORDER BY job.id
"""

# Jobs that the stopped tree was found to have lost and that are in somebody else's hands now.
TAKEN_OVER = """
SELECT job.id, lost.attempt FROM django_jobs_job AS job
JOIN django_jobs_worker AS owner ON owner.id = job.worker_id AND owner.name <> %(tree)s
JOIN django_jobs_run AS lost ON lost.job_id = job.id AND lost.attempt = job.attempt - 1
    AND lost.outcome = 'lost' AND lost.finished_at > to_timestamp(%(since)s)
JOIN django_jobs_worker AS loser ON loser.id = lost.worker_id AND loser.name = %(tree)s
WHERE job.status = 'running'
"""


class Faults:
    """One storm. Outages go on while workers are killed, and the other way round."""

    def __init__(self, ground: Ground, seed: int) -> None:
        self._ground = ground
        self._seed = seed
        self._stopped: list[tuple[float, Fault, int]] = []
        self._away: tuple[float, Fault] | None = None
        self._watch_at = 0.0

    def go_on_for(self, seconds: float) -> None:
        """Storm, then undo what is left of it: all awake, the database there."""
        begun = step_at = time.time()
        steps = plan.steps(self._seed, len(self._ground.trees))
        outages = iter(plan.outages(self._seed, seconds))
        outage = next(outages, None)
        while (now := time.time()) < begun + seconds:
            if now >= begun + seconds / 2 and self._ground.deployed_at > now:
                self._ground.deploy()
            self._ground.keep_trees()
            self._undo(now)
            if outage is not None and now >= begun + outage.at and self._away is None:
                self._stop_database(outage)
                outage = next(outages, None)
            if now >= step_at:
                step_at = time.time() + self._do(next(steps))
            time.sleep(TICK)
        self._undo(float("inf"))
        self._ground.keep_trees()

    def make_one_late(self) -> None:
        """After the storm: a tree whose handler has begun sleeps until its job runs elsewhere. It
        wakes when its handler has long been over, and the other one has seconds to go. In the storm
        the two meet by chance."""
        self._ground.ask("late")
        until = time.time() + self._ground.patience
        while (tree := self._at_work()) is None and time.time() < until:
            self._ground.keep_trees()
            time.sleep(TICK)
        if tree is not None:
            fault = Fault(kind=plan.STOP_UNTIL_TAKEN, at=time.time(), tree=tree.name, until=until)
            tree.signal_all(signal.SIGSTOP)
            self._stopped.append((until, fault, tree.process.pid))
            self._ground.history.faults.append(fault)
            self._ground.say(f"{fault.kind} {fault.tree}")
        while self._stopped:
            self._ground.keep_trees()
            self._undo(time.time())
            time.sleep(TICK)
        self._ground.all_asked()
        while self._fetch(AT_WORK) and time.time() < until:
            self._ground.keep_trees()
            time.sleep(TICK)

    def _at_work(self) -> Tree | None:
        begun = {(line.job, line.attempt) for line in effects.read(self._ground.effects)}
        trees = {tree.name: tree for tree in self._ground.trees}
        rows = self._fetch(AT_WORK)
        return next((trees[name] for name, *attempt in rows if tuple(attempt) in begun), None)

    def _do(self, step: Step) -> float:
        tree = self._ground.trees[step.tree]
        if step.kind == plan.STOP_UNTIL_TAKEN:
            tree = self._busiest() or tree
        if step.kind in plan.STOPS and not self._may_stop(tree):
            self._ground.say(f"passed over: {step.kind} {tree.name}")
            return step.pause
        fault = Fault(kind=step.kind, at=time.time(), tree=tree.name)
        match step.kind:
            case plan.KILL_SUPERVISOR:
                fault.pid = tree.signal_root(signal.SIGKILL)
            case plan.KILL_CHILD:
                fault.pid = tree.signal_one(signal.SIGKILL, step.share)
            case plan.STOP_TREE | plan.STOP_UNTIL_TAKEN:
                tree.signal_all(signal.SIGSTOP)
            case plan.STOP_SUPERVISOR:
                fault.pid = tree.signal_root(signal.SIGSTOP)
            case plan.STOP_CHILD:
                fault.pid = tree.signal_one(signal.SIGSTOP, step.share)
            case plan.TERMINATE:
                fault.tree = ""  # whose they are, the server does not say
                self._fetch(TERMINATE, [step.backends])
            case plan.DRAIN:
                fault.pid = tree.signal_root(signal.SIGTERM)
        if step.kind in plan.STOPS:
            longest = step.kind == plan.STOP_UNTIL_TAKEN
            fault.until = fault.at + (plan.LONGEST_STOP if longest else step.seconds)
            self._stopped.append((fault.until, fault, tree.process.pid))
        self._ground.history.faults.append(fault)
        self._ground.say(f"{step.kind} {fault.tree} {fault.pid or ''}")
        return step.pause

    def _may_stop(self, tree: Tree) -> bool:
        """While one sleeps until its job is taken over, two others stay awake to take it."""
        asleep = {fault.tree for _, fault, _ in self._stopped} | {tree.name}
        waits = any(fault.kind == plan.STOP_UNTIL_TAKEN for _, fault, _ in self._stopped)
        return not waits or len(asleep) <= len(self._ground.trees) - 2

    def _busiest(self) -> Tree | None:
        asleep = {fault.tree for _, fault, _ in self._stopped}
        awake = {tree.name: tree for tree in self._ground.trees if tree.name not in asleep}
        return next((awake[name] for (name,) in self._fetch(BUSIEST) if name in awake), None)

    def _undo(self, now: float) -> None:
        """Wake whoever has slept long enough, and start the database again."""
        watch = now >= self._watch_at
        for entry in list(self._stopped):
            until, fault, root = entry
            taken = watch and fault.kind == plan.STOP_UNTIL_TAKEN and self._is_taken_over(fault)
            if until <= now or taken:
                self._stopped.remove(entry)
                if taken or not any(other == root for _, _, other in self._stopped):
                    # Those that were stopped, also if their supervisor was killed meanwhile.
                    signal_session(root, signal.SIGCONT)
                fault.until = time.time()
                if taken:
                    self._ground.say(f"wake {fault.tree}: its job runs elsewhere")
        if watch:
            self._watch_at = time.time() + WATCH
        if self._away is not None and self._away[0] <= now:
            self._ground.cluster.start()
            self._away[1].until = time.time()
            self._away = None
            self._ground.say("the database is back")

    def _is_taken_over(self, fault: Fault) -> bool:
        """Whether a handler that was stopped would come back now beside the next attempt's."""
        rows = self._fetch(TAKEN_OVER, {"tree": fault.tree, "since": fault.at})
        if not rows:
            return False
        begun = {(line.job, line.attempt) for line in effects.read(self._ground.effects)}
        return not begun.isdisjoint(rows)

    def _fetch(self, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        try:
            return [] if self._away else self._ground.cluster.fetch(sql, parameters)
        except psycopg.Error:  # our own backend was terminated, or there is none yet
            return []

    def _stop_database(self, outage: Outage) -> None:
        self._ground.say(f"{plan.OUTAGE} ({outage.how.name}) for {outage.seconds:.1f} s")
        fault = Fault(kind=plan.OUTAGE, at=time.time(), until=float("inf"))
        self._ground.history.outages.append(fault)
        self._ground.cluster.stop(outage.how)
        fault.gone = time.time()
        self._away = fault.gone + outage.seconds, fault
