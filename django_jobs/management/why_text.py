"""Why a job is not running, as text."""

from __future__ import annotations

from ..logs import printable
from ..models import Job
from ..why.explanation import Explanation, GateState, plain

MARKS = {GateState.PASSED: "ok", GateState.HOLDS: "HOLDS", GateState.UNKNOWN: "?"}


def render(job: Job, why: Explanation) -> str:
    """For a terminal: the sentence, and a line for each gate."""
    lines = [f"{job.job_type} #{job.pk} on {job.queue} is {job.status}. {plain(why.sentence)}"]
    if why.expected is not None and why.expected.seconds:
        lines.append(f"The expected start is computed from this: {why.expected.basis}.")
    if why.gates:
        lines.append("")
    width = max((len(gate.title) for gate in why.gates), default=0)
    for gate in why.gates:
        lines.append(f"{MARKS[gate.state]:<6} {gate.title:<{width}}  {plain(gate.text)}")
        lines += [f"{'':<7}{'':<{width}}  {plain(detail)}" for detail in gate.details]
    return "\n".join(map(printable, lines))
