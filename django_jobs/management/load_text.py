"""What queues need and what job types use, as text or JSON."""

from __future__ import annotations

from dataclasses import asdict

from ..metrics.cost import Cost, take_cost
from ..metrics.sizing import Sizing, take_sizing
from .base import counted, json_text, table

SIZING_HEADS = ("QUEUE", "RUNS/S", "MEAN", "P95", "NEEDS", "THREADS", "SLOTS")
COST_HEADS = ("JOB TYPE", "RUNS", "TIME", "CPU", "MEMORY", "QUERIES", "IN QUERIES")


def sizing_text(as_json: bool) -> str:
    """What ``jobstatus --sizing`` prints."""
    sizing = take_sizing()
    if as_json:
        return json_text({**asdict(sizing), "problems": sizing.problems})
    return _render_sizing(sizing)


def cost_text(as_json: bool) -> str:
    """What ``jobstatus --cost`` prints."""
    cost = take_cost()
    return json_text(asdict(cost)) if as_json else _render_cost(cost)


def _render_sizing(sizing: Sizing) -> str:
    """The load of each queue, then what is too small."""
    if not sizing.queues:
        return "No run ended in the last hour."
    rows = [
        (
            queue.queue,
            f"{queue.rate:.3g}",
            f"{queue.mean_seconds:.3g}s",
            f"{queue.p95_seconds:.3g}s",
            f"{queue.slots_needed:.1f}",
            "-" if queue.on_loop else str(queue.slots),
            str(queue.slots) if queue.on_loop else "-",
        )
        for queue in sizing.queues
    ]
    source = _source(sizing.runs, sizing.seconds)
    return "\n\n".join([source, table(SIZING_HEADS, rows), *sizing.problems])


def _source(runs: int, seconds: float) -> str:
    span = f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
    return f"From {counted(runs, 'run')} of the last {span}."


def _render_cost(cost: Cost) -> str:
    """What the runs of each job type used."""
    if not cost.types:
        return "No run ended in the last hour."
    rows = [
        (
            of.job_type,
            str(of.runs),
            f"{of.seconds:.3g}s",
            "-" if of.cpu_seconds is None else f"{of.cpu_seconds:.3g}s",
            "-" if of.max_rss_kb is None else f"{of.max_rss_kb / 1024:.0f} MB",
            "-" if of.queries is None else str(of.queries),
            "-" if of.query_seconds is None else f"{of.query_seconds:.3g}s",
        )
        for of in cost.types
    ]
    source = _source(sum(of.runs for of in cost.types), cost.seconds)
    return f"{source}\n\n{table(COST_HEADS, rows)}"
