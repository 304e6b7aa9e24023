"""The workflows of the chaos test.

The result of a step is 1 and the sum of the results that it gets, so that the account can compute
it. Steps that fail on purpose do so in odd attempts: a retry by an operator mostly succeeds.
"""

from __future__ import annotations

import time
from typing import Any

from django_jobs import Backoff, Concurrency, If, SignalTimeout, Skip, Workflow, current_run, job

from .lines import leave_a_line
from .models import Mark

OFTEN: dict[str, Any] = {
    "backoff": Backoff.fixed(0.2, jitter=0.5),
    "max_crashes": 50,
    "max_attempts": 50,
}
REST, TIMEOUT = 0.5, 2.5
"""Seconds of a sleep, and of a wait for a signal."""


@job(**OFTEN)
def step(seconds: float) -> int:
    """Work that gets nothing."""
    leave_a_line()
    time.sleep(seconds)
    return 1


@job(**OFTEN)
def adds(seconds: float, left: int | None = None, right: int | None = None) -> int:
    """Adds up the results of one step or two. One that was skipped by hand has none."""
    leave_a_line()
    time.sleep(seconds)
    return 1 + (left or 0) + (right or 0)


@job(**OFTEN, delivery="exactly_once")
def adds_inside(seconds: float, left: int | None = None) -> int:
    """The same with an effect that commits with the job, or not at all."""
    leave_a_line()
    run = current_run()
    assert run is not None
    Mark(job_id=run.job_id).save()
    time.sleep(seconds)
    return 1 + (left or 0)


@job(**OFTEN, concurrency=Concurrency("three", limit=3))
def gated_step(seconds: float) -> int:
    """Waits for a slot after it has opened."""
    leave_a_line()
    time.sleep(seconds)
    return 1


@job(max_crashes=50, max_attempts=1)
def fails(seconds: float, failing: bool = True) -> int:
    """Fails on purpose, without a retry."""
    attempt = leave_a_line()
    time.sleep(seconds)
    if failing and attempt % 2:
        raise RuntimeError("as planned")
    return 1


@job(**OFTEN)
def judges(seconds: float, parts: int) -> int:
    """Decides on a branch."""
    leave_a_line()
    time.sleep(seconds)
    return parts % 3


@job(**OFTEN)
def perhaps(seconds: float, parts: int) -> int:
    """One of two is not needed."""
    leave_a_line()
    if parts % 2:
        raise Skip("as planned")
    return 1


@job(**OFTEN)
def undo(seconds: float, result: int | None = None) -> int:
    """Compensates a step."""
    leave_a_line()
    time.sleep(seconds)
    return 1 + (result or 0)


@job(**OFTEN)
def joins() -> int:
    """Adds up the results of a fan-out."""
    leave_a_line()
    run = current_run()
    assert run is not None
    return 1 + sum(child.result or 0 for child in run.children())


@job(**OFTEN)
def splits(seconds: float, parts: int) -> int:
    """Decides on a fan-out."""
    leave_a_line()
    run = current_run()
    assert run is not None
    run.spawn(step, [{"seconds": seconds / 4}] * parts, then=joins, key="part")
    return 1


@job(**OFTEN)
def rests(seconds: float) -> int:
    """A durable handler: sleeps once, and waits for a signal that may not come."""
    leave_a_line()
    run = current_run()
    assert run is not None
    time.sleep(seconds)
    run.sleep("rest", REST)
    try:
        return int(run.wait_for("answer", timeout=TIMEOUT))
    except SignalTimeout:
        return 1


line = Workflow("chaos.line")
line.step(step, "first")
line.step(adds_inside, "second", after="first", takes={"left": "first"})
line.step(adds, "third", after="second", takes={"left": "second"})

diamond = Workflow("chaos.diamond")
diamond.step(step, "top")
diamond.step(adds, "left", after="top", takes={"left": "top"})
diamond.step(gated_step, "right", after="top")
diamond.step(adds, "bottom", after=["left", "right"], takes={"left": "left", "right": "right"})

branch = Workflow("chaos.branch")
branch.step(step, "try")
branch.step(fails, "risk", after="try")
branch.step(step, "usual", after="risk")
branch.step(step, "sorry", after="risk", when="failed")
branch.step(step, "tidy", after={"usual": "finished", "sorry": "finished"})
branch.step(step, "report", after=["tidy", "try"])

fan = Workflow("chaos.fan")
fan.step(splits, "split")
fan.step(step, "publish", after="split")

order = Workflow("chaos.order")
order.step(step, "reserve", compensate=undo)
order.step(adds, "charge", after="reserve", takes={"left": "reserve"}, compensate=undo)
order.step(fails, "ship", after="charge", compensate=undo)
order.step(step, "close", after="ship")

approval = Workflow("chaos.approval")
approval.step(step, "ask")
approval.wait("answer", after="ask", timeout=TIMEOUT)
approval.sleep("rest", REST, after="answer")
approval.step(adds, "pay", after=["answer", "rest"], takes={"left": "answer"})
approval.step(step, "remind", after="answer", when="failed")

patient = Workflow("chaos.patient")
patient.wait("answer", timeout=TIMEOUT, on_timeout="continue")
patient.step(rests, "flow")
patient.step(adds, "done", after=["answer", "flow"], takes={"left": "answer", "right": "flow"})

parcel = Workflow("chaos.parcel")
parcel.step(step, "pick")
parcel.step(fails, "pack", after="pick")

choice = Workflow("chaos.choice")
choice.step(judges, "judge")
choice.step(step, "none", after={"judge": If(equals=0)})
choice.step(perhaps, "some", after={"judge": If(at_least=1)})
choice.step(step, "two", after={"judge": If(in_=[2]), "some": "finished"})
choice.step(fails, "extra", after="judge", optional=True)
choice.step(parcel, "part", after={"none": "finished", "some": "finished"})
choice.step(step, "close", after={"part": "succeeded", "two": "finished", "extra": "finished"})

strict = Workflow("chaos.strict", on_failure="cancel")
strict.step(step, "begin", compensate=undo)
strict.step(fails, "risk", after="begin")
strict.step(step, "long", after="begin")
strict.step(step, "longer", after="long")
strict.step(step, "close", after=["risk", "longer"])

consent = Workflow("chaos.consent")
consent.wait("answer", fields={"approved": bool, "note": str}, timeout=TIMEOUT)
consent.step(step, "yes", after={"answer": If("approved", equals=True)})
consent.step(step, "no", after={"answer": If("approved", equals=False)})
consent.step(step, "close", after={"yes": "finished", "no": "finished"})

WORKFLOWS = {
    one.name: one
    for one in (line, diamond, branch, fan, order, approval, patient, choice, strict, consent)
}
