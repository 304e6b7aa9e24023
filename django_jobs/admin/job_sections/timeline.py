"""The runs of a job in order: as a picture, and with their errors as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from django.db.models import Case, F, TextField, Value, When
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from ...domain.states import RunState
from ...models import JobStatus, Run, Worker
from ..access.errors import hide_in_run, mask
from ..base.formatting import (
    Visible,
    change_url,
    choice_badge,
    clock_text,
    duration,
    moment,
    moment_in_zone,
    usage,
)
from ..base.json_display import object_of

MOST_RUNS = 100
MOST_DRAWN = 12
MOST_TRACEBACKS = 10
"""Older runs are shown without one: a traceback may be 64 KB. The run's own page shows it."""
FIRST_LINE = 200
ROW = 34
"""Pixels of a row of the picture: a line of text, and below it the bars."""


def timeline(job: Any, visible: Visible, headers: str | None) -> dict[str, Any]:
    """The latest runs of ``job`` as ``steps``, the oldest first. ``replay`` is a replay after all
    of them. ``headers`` is JSON text and lists the replays."""
    alias = job._state.db
    latest = (
        Run.objects.using(alias)
        .filter(job_id=job.pk)
        .order_by("-attempt")
        .defer("traceback", "log")
        .annotate(
            shown_traceback=Case(
                When(attempt__gt=job.attempt - MOST_TRACEBACKS, then=F("traceback")),
                default=Value(""),
                output_field=TextField(),
            )
        )
    )
    runs: list[Any] = list(latest[: MOST_RUNS + 1])
    ends = {run.attempt: run.finished_at for run in runs if run.outcome in INTERRUPTED}
    cut, runs = len(runs) > MOST_RUNS, runs[:MOST_RUNS][::-1]
    numbers = {run.worker_id for run in runs} | {job.worker_id}
    workers = Worker.objects.using(alias).in_bulk([pk for pk in numbers if pk is not None])
    for run in runs:
        if job.errors_hidden:
            hide_in_run(run)
            run.shown_traceback = ""
        mask(run)
    replays = _replays(headers)
    steps, previous = [], -1
    for run in runs:
        before = [text for after, text in replays if previous <= after < run.attempt]
        worker = visible.worker(run.worker_id, workers)
        steps.append(_step(run, before, worker, visible, ends.get(run.attempt - 1)))
        previous = run.attempt
    after = [text for attempt, text in replays if attempt >= previous]
    return {
        "steps": steps,
        "last": steps[-1] if steps else None,
        "replay": "; ".join(after),
        "most": MOST_RUNS if cut else None,
        "was_gated": any(step["gate_time"] for step in steps),
        "picture": _picture(job, runs),
        "worker": visible.worker(job.worker_id, workers),
    }


def _step(
    run: Any, replays: list[str], worker: str, visible: Visible, earlier_end: datetime | None
) -> dict[str, Any]:
    at_gates = gate_time_of(run.available_at, run.ready_at, earlier_end)
    line = run.error_message.strip().split("\n", 1)[0]
    whole = line == run.error_message.strip() and len(line) <= FIRST_LINE
    return {
        "run": run,
        "replay": "; ".join(replays),
        "badge": choice_badge(run, "outcome"),
        "worker": worker,
        "due": moment(run.available_at),
        "started": moment(run.started_at),
        "finished": moment(run.finished_at),
        "gate_time": duration(at_gates) if run.ready_at else "",
        "waited": duration(wait_of(run.available_at, run.claimed_at, earlier_end) - at_gates),
        "ran": duration(run.duration),
        "used": usage(run),
        "headline": line if len(line) <= FIRST_LINE else line[:FIRST_LINE] + "…",
        "message": "" if whole else run.error_message,
        "traceback": run.shown_traceback,
        "url": change_url(visible.site, Run, run.pk) if visible.sees(Run) else "",
    }


def _picture(job: Any, runs: list[Run]) -> dict[str, Any] | None:
    """The latest runs and what the job does now on a line of time, which goes from ``begin`` to
    ``end``; None before anything happened, and for times that Python cannot read. The ``state`` of
    a row gives its bars their colour."""
    drawn = runs[-MOST_DRAWN:]
    stretches: list[tuple[Any, Any, Any]] = [
        (run.available_at, run.claimed_at, run.finished_at) for run in drawn
    ]
    is_final = job.finished_at is not None
    if not is_final:
        is_claimed = job.status == JobStatus.RUNNING
        # A job that waits for another one, or for a signal, is due when that has happened.
        due = job.read_at if job.status == JobStatus.WAITING else job.available_at
        stretches.append((due, job.claimed_at if is_claimed else None, None))
    begin = job.created_at if len(drawn) == len(runs) else drawn[0].available_at
    end = job.finished_at if is_final else job.read_at
    times = [begin, end, *(at for stretch in stretches for at in stretch if at is not None)]
    if not stretches or not all(type(at) is datetime for at in times):
        return None
    rows = bars_of(
        [
            Stretch(due=due.timestamp(), claimed=_epoch(claimed), ended=_epoch(ended))
            for due, claimed, ended in stretches
        ],
        begin.timestamp(),
        end.timestamp(),
    )
    texts = [(_run_text(run), run.outcome) for run in drawn]
    if not is_final:
        texts.append((_present_text(job), job.status))
    return {
        "rows": [
            {
                "text": text,
                "state": state,
                "top": number * ROW,
                "bars": [
                    {
                        "kind": bar.kind,
                        "start": f"{bar.start:.2f}%",
                        "end": f"{bar.start + bar.width:.2f}%",
                        "width": f"{bar.width:.2f}%",
                        "title": f"{BARS[bar.kind]()} {duration(timedelta(seconds=bar.seconds))}",
                    }
                    for bar in bars
                ],
            }
            for number, ((text, state), bars) in enumerate(zip(texts, rows, strict=True))
        ],
        "height": len(rows) * ROW,
        "begin": moment_in_zone(begin),
        "end": moment_in_zone(end) if is_final else _("now"),
        "hidden": len(runs) - len(drawn),
    }


BARS = {
    "pause": lambda: _("not due for"),
    "wait": lambda: _("due, waited"),
    "run": lambda: _("ran"),
}


def _epoch(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def _run_text(run: Run) -> str:
    values: Mapping[str, Any] = {
        "attempt": run.attempt,
        "outcome": run.get_outcome_display(),
        "time": duration(run.duration or run.finished_at - run.claimed_at),
    }
    text = _("%(attempt)s · %(outcome)s after %(time)s") % values
    return f"{text} · {run.error_type}" if run.error_type else text


def _present_text(job: Any) -> str:
    now, number = job.read_at, job.attempt + 1
    if job.status == JobStatus.RUNNING:
        values = {"attempt": job.attempt, "time": duration(now - job.claimed_at)}
        return _("%(attempt)s · running for %(time)s") % values
    values = {"attempt": number, "status": job.get_status_display()}
    if job.available_at > now:
        due = duration(job.available_at - now)
        return _("%(attempt)s · %(status)s, due in %(time)s") % {**values, "time": due}
    waited = duration(now - job.available_at)
    return _("%(attempt)s · %(status)s for %(time)s") % {**values, "time": waited}


def _replays(headers: str | None) -> list[tuple[int, str]]:
    """The replays and the edits that the headers remember, each after the number of an attempt."""
    stored = object_of(headers)
    noted = []
    for name, done_by in (("edits", _("Edited by %(who)s")), ("replays", _("Replayed by %(who)s"))):
        entries = stored.get(name)
        for entry in entries if isinstance(entries, list) else ():
            attempt = entry.get("after_attempt") if isinstance(entry, dict) else None
            if isinstance(attempt, int):
                noted.append((attempt, entry_text(entry, done_by)))
    return sorted(noted[-MOST_RUNS:], key=itemgetter(0))


def entry_text(entry: dict[str, Any], done_by: str) -> str:
    text = done_by % {"who": entry.get("by") or _("code or command line")}
    if at := moment_of(str(entry.get("at"))):
        text += f", {clock_text(timezone.localtime(at))}"
    why = entry.get("why")
    return f"{text}: {why}" if why else text


def moment_of(text: str) -> datetime | None:
    """The time in a text, if it has one with a zone."""
    with suppress(ValueError):
        at = parse_datetime(text)
        return None if at is None or at.tzinfo is None else at
    return None


LEAST = 0.4
"""Percent. What took less time is drawn this wide, to be seen at all."""

INTERRUPTED = (RunState.RELEASED, RunState.LOST)
"""An attempt that ends so leaves the job its due time: the next one is due at its end."""


def wait_of(due: datetime, claimed: datetime, earlier_end: datetime | None) -> timedelta:
    """How long an attempt was due before it was claimed. ``earlier_end`` is the end of the one
    before it, if that was interrupted."""
    return claimed - (due if earlier_end is None else max(due, earlier_end))


def gate_time_of(due: datetime, ready: datetime | None, earlier_end: datetime | None) -> timedelta:
    """The part of that wait until its gates let the attempt go; none without gates."""
    return timedelta() if ready is None else max(wait_of(due, ready, earlier_end), timedelta())


class Stretch(NamedTuple):
    """An attempt: when it was due, claimed and ended, in epoch seconds. None is not yet."""

    due: float
    claimed: float | None = None
    ended: float | None = None


class Bar(NamedTuple):
    """A part of an attempt: ``start`` and ``width`` in percent, ``seconds`` as long as it took."""

    kind: Literal["pause", "wait", "run"]
    start: float
    width: float
    seconds: float


def bars_of(stretches: Sequence[Stretch], begin: float, end: float) -> list[list[Bar]]:
    """The bars of each attempt, from ``begin`` to ``end``: the pause before it was due, its wait
    for a worker, its run."""
    rows, previous = [], begin
    for one in stretches:
        # A released job keeps its due time, which was before the attempt that was released.
        due = max(one.due, previous)
        claimed = end if one.claimed is None else max(one.claimed, due)
        ended = end if one.ended is None else max(one.ended, claimed)
        parts: list[tuple[Literal["pause", "wait", "run"], float, float]] = [
            ("pause", previous, due),
            ("wait", due, claimed),
        ]
        if one.claimed is not None:
            parts.append(("run", claimed, ended))
        bars = [_bar(kind, since, until, begin, end) for kind, since, until in parts]
        rows.append([bar for bar in bars if bar.seconds > 0 or bar.kind == "run"])
        previous = ended
    return rows


def _bar(
    kind: Literal["pause", "wait", "run"], since: float, until: float, begin: float, end: float
) -> Bar:
    whole = max(end - begin, 1e-6)
    since, until = min(max(since, begin), end), min(max(until, begin), end)
    width = max((until - since) / whole * 100, LEAST)
    start = min((since - begin) / whole * 100, 100 - width)
    return Bar(kind, start, width, until - since)
