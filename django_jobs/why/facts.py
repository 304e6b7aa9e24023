"""Reads what the gates of a job depend on, in one statement and so of one moment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..domain.numbers import duration_text
from ..models import Job, JobStatus
from ..models.database import fetch, with_parts
from ..separators import localized, number_text
from .explanation import Ref, Text, fill, joined

MOST_BEFORE = 10_000
"""Jobs before this one that are counted."""
MOST_IN_LINE = 1_000
"""Blocked jobs before this one that are counted. For more, the planner sorts the whole line."""
MOST_READ = 10_000
"""Jobs that one count of what is taken reads."""
MOST_NAMED = 3

NOW = "SELECT statement_timestamp() AS now"

Row = dict[str, Any]


def before_in(head: str, most: int) -> str:
    """SQL that counts those of the first jobs of a line, ``rank, id`` in order, that are before the
    job. Without a condition on the rank in ``head``: with one, the planner expects too few jobs and
    sorts all of them."""
    count = "count(*) FILTER (WHERE (rank, id) < (%(rank)s::float8, %(id)s::bigint))"
    return f"""
    SELECT least({count}, {most}) AS before, {count} > {most} AS more
    FROM ({head} LIMIT {most + 1}) AS head"""


def usage_of(rows: str, hangs: str = "false::boolean") -> str:
    """SQL that counts ``rows``, which are ``id, status, claimed_at, attempt``, and names the first
    of them with their progress. Those that meet ``hangs`` are counted once more, and named last.
    ``newest`` is when the last of them was claimed, if all run."""
    return f"""
    WITH used AS MATERIALIZED ({rows})
    SELECT (SELECT count(*) FROM used) AS taken,
        (SELECT count(*) FROM used WHERE {hangs}) AS hanging,
        (SELECT count(*) FROM used WHERE status = 'ready') AS ready,
        (SELECT CASE WHEN bool_and(status = 'running') THEN max(claimed_at) END FROM used)
            AS newest, ARRAY(
        SELECT to_jsonb(holder) FROM (
            SELECT first.id, first.status, first.claimed_at, progress.fraction
            FROM (SELECT *, row_number() OVER (ORDER BY {hangs}, claimed_at NULLS LAST, id) AS place
                FROM used ORDER BY place LIMIT {MOST_NAMED}) AS first
            LEFT JOIN django_jobs_progress AS progress
                ON progress.job_id = first.id AND progress.attempt = first.attempt
            ORDER BY first.place
        ) AS holder) AS holders"""


class Facts:
    """What was read: the rows of each part by its name, and when."""

    def __init__(
        self,
        job: Job,
        parts: Mapping[str, str],
        parameters: Mapping[str, Any],
        *,
        names_jobs: bool = True,
    ) -> None:
        ((text,),) = fetch(with_parts({"now": NOW, **parts}), parameters)
        self.names_jobs = names_jobs
        self._rows: dict[str, list[Row]] = json.loads(text)
        self.job = job
        now = moment(self._rows["now"][0]["now"])
        assert now is not None
        self.now = now

    def rows(self, part: str) -> list[Row]:
        """The rows of a part; none if it was not read."""
        return self._rows.get(part, [])

    def row(self, part: str) -> Row | None:
        return next(iter(self.rows(part)), None)

    def since(self, at: datetime | None) -> str:
        """How long ago that was, or how far it is away: ``26 min``."""
        return "-" if at is None else localized(duration_text(abs((self.now - at).total_seconds())))


def moment(text: Any) -> datetime | None:
    """A time of a part; None if there is none, or none that Python can represent."""
    try:
        at = datetime.fromisoformat(text).astimezone(UTC)
        timezone.localtime(at)  # as clock() shows it
    except (TypeError, ValueError, OverflowError):
        return None
    return at


def clock(at: datetime, zone: bool = True) -> str:
    """In local time, with the date unless it is today. Of two times the last has the ``zone``."""
    local = timezone.localtime(at)
    day = "" if local.date() == timezone.localdate() else f"{local:%Y-%m-%d} "
    return f"{day}{local:%H:%M:%S}" + (f" {local:%Z}" if zone else "")


def job_ref(id_: int) -> Ref:
    return Ref("job", id_, f"#{id_}")


def worker_ref(row: Row) -> Ref:
    return Ref("worker", row["id"], f"{row['name']} #{row['id']}")


def status_text(row: Row) -> str:
    return str(JobStatus(row["status"]).label)


def holders(row: Row, facts: Facts) -> Text:
    """The first jobs that hold something: ``#12 (22 min, 41 %), #13 (ready) and 2 more``."""
    named = joined(_holder(one, facts) for one in row["holders"])
    more = row["taken"] - len(row["holders"])
    if more <= 0:
        return named
    return fill(_("%(jobs)s and %(count)s more"), jobs=named, count=more)


def _holder(row: Row, facts: Facts) -> Text:
    if row["status"] != "running":
        return fill("%(job)s (%(status)s)", job=job_ref(row["id"]), status=status_text(row))
    share = row["fraction"]
    progress = _("no progress reported") if share is None else f"{share * 100:.0f} %"
    since = facts.since(moment(row["claimed_at"]))
    return fill(
        "%(job)s (%(time)s, %(progress)s)", job=job_ref(row["id"]), time=since, progress=progress
    )


def pause_text(row: Row, name: Text, facts: Facts) -> Text:
    """Since when, by whom and why a queue, a resource or a tenant is paused."""
    at, by, reason = moment(row["paused_at"]), row["paused_by"], row["paused_reason"]
    until = moment(row["paused_until"])
    text = fill(_("%(name)s is paused"), name=name)
    if at is not None:
        text = fill(_("%(text)s since %(time)s"), text=text, time=clock(at, until is None))
        text = fill(_("%(text)s (%(age)s)"), text=text, age=facts.since(at))
    if by:
        text = fill(_("%(text)s by %(who)s"), text=text, who=by)
    if until is not None:
        text = fill(_("%(text)s until %(time)s"), text=text, time=clock(until))
    if reason and reason not in ("paused", f"paused by {by}"):
        text = fill("%(text)s: %(reason)s", text=text, reason=reason)
    return text


def jobs_text(count: int, more: bool = False) -> str:
    """``1 job``, ``139 jobs``, ``10,000+ jobs``."""
    number = number_text(count, more=more)
    return ngettext("%(number)s job", "%(number)s jobs", count) % {"number": number}


def after(at: Any, seconds: float | None) -> datetime | None:
    start = moment(at)
    if start is None or seconds is None:
        return None
    try:
        return start + timedelta(seconds=seconds)
    except OverflowError:
        return None
