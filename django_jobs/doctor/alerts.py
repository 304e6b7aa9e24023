"""Alerts of what the doctor, the metrics and ``jobstatus`` find wrong.

One worker of the fleet looks once a minute. Each situation is sent once: by mail, to a webhook or
to a function of the project.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from threading import Thread
from typing import Any
from urllib.error import HTTPError, URLError

from django.conf import settings
from django.core.mail import send_mail
from django.db import connections, transaction
from django.utils.module_loading import import_string

from ..conf import conf
from ..domain.callbacks import AT_MOST_PER_HOUR, HOLD_SECONDS, MAILTO, WEB
from ..metrics.gauges import BOUNDS, read_gauges
from ..metrics.schedules import MAX_LAG, problem_of_schedules, take_schedules
from ..metrics.slo import BURNING, FEWEST_RUNS, take_objectives
from ..metrics.stored import NoMetrics
from ..models.database import execute, fetch, fetch_named, jobs_connection
from ..models.queue import SloSince
from ..signals import emit
from ..worker.handlers.callbacks import post
from .examination import EXAMINATIONS, diagnose
from .findings import CannotExamine, Finding, jobs

Situation = tuple[str, str]
"""The name of what it happens to, empty for all of them, and the problem in a sentence."""


def _dead_jobs() -> Iterator[Situation]:
    for row in read_gauges()["queues"]:
        if number := row["recently_dead"]:
            died = jobs(number, BOUNDS["recent"])
            yield row["queue"], f"{died} of the queue {row['queue']!r} died in the last hour."


def _late_schedule() -> Iterator[Situation]:
    if problem := problem_of_schedules(take_schedules(), MAX_LAG):
        yield "", f"{problem[0].upper()}{problem[1:]}."


def _unserved_queue() -> Iterator[Situation]:
    for finding in _findings("D301", "D302"):
        names = finding.facts.get("queues") or [finding.facts["queue"]]
        yield from ((name, finding.problem) for name in names)


def _failed_compensation() -> Iterator[Situation]:
    for finding in _findings("D309"):
        yield str(finding.facts["run"]), finding.problem


def _open_breaker() -> Iterator[Situation]:
    """One that is half open was open, and is not closed yet."""
    for row in read_gauges()["breakers"]:
        if row["is_in"] and row["state"] != "closed":
            state = row["state"].replace("_", " ")
            yield row["resource"], f"The breaker of the resource {row['resource']!r} is {state}."


def _burning_objective() -> Iterator[Situation]:
    for one in take_objectives():
        if one.hour.runs >= FEWEST_RUNS and (one.hour.burn_rate or 0) > BURNING:
            after = " after they were ready" if one.since == SloSince.READY else ""
            yield (
                one.queue,
                f"{one.hour.ratio:.1%} of the last hour's jobs of the queue {one.queue!r} started "
                f"within {one.seconds:g} s{after}; the objective is {one.target * 100:.4g}%.",
            )


LOOKS: dict[str, Callable[[], Iterable[Situation]]] = {
    "dead_jobs": _dead_jobs,
    "late_schedule": _late_schedule,
    "unserved_queue": _unserved_queue,
    "failed_compensation": _failed_compensation,
    "open_breaker": _open_breaker,
    "burning_objective": _burning_objective,
}
"""By the names of :data:`~django_jobs.domain.callbacks.HOLD_SECONDS`."""


def look_for(names: Collection[str]) -> dict[str, dict[str, str]]:
    """The problems of these situations, by what they happen to. One that could not be looked for is
    left out. Raises the database's error."""
    found = {}
    for name in names:
        try:
            found[name] = dict(LOOKS[name]())
        except (CannotExamine, NoMetrics):
            continue
    return found


def _findings(*numbers: str) -> Iterator[Finding]:
    chosen = [one for one in EXAMINATIONS if numbers[0] in one.numbers]
    diagnosis = diagnose(chosen)
    if diagnosis.not_examined:
        raise CannotExamine(diagnosis.not_examined[0].reason)
    ids = {f"django_jobs.{number}" for number in numbers}
    return (one for one in diagnosis.findings if one.id in ids)


def send(to: str, message: Mapping[str, Any]) -> None:
    """Send ``message``, which has ``rule``, ``test`` and ``situations``. Raises what the mail
    server, the webhook or the function raises."""
    if to.startswith(MAILTO):
        _send_mail(to.removeprefix(MAILTO).split(","), message)
    elif to.startswith(WEB):
        post(to, json.dumps(message).encode(), {})
    else:
        import_string(to)(message)


def why_not_sent(error: BaseException) -> str:
    """The error without its text, which may name the address of the webhook."""
    if isinstance(error, HTTPError):
        return f"the webhook answered {error.code}"
    cause = error.reason if isinstance(error, URLError) else error
    name = type(cause).__name__
    if isinstance(cause, OSError) and cause.errno and cause.strerror:
        return f"{name}: {cause.strerror}"
    return name


def _send_mail(addresses: list[str], message: Mapping[str, Any]) -> None:
    lines = [
        f"{'Ended' if one['ended_at'] else 'Began'}: {one['problem']}"
        for one in message["situations"]
    ]
    subject = "A test of django_jobs' alerts"
    if lines:
        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        subject = " ".join(f"{lines[0]}{more}".split())
    body = []
    for line, one in zip(lines, message["situations"], strict=True):
        until = f", until {one['ended_at']}" if one["ended_at"] else ""
        body.append(f"{line}\nSince {one['began_at']}{until}")
    body = body or ["This message is a test. Nothing is wrong."]
    body.append(f'Sent for {message["rule"]!r} in DJANGO_JOBS["ALERTS"].')
    subject = f"{settings.EMAIL_SUBJECT_PREFIX}{subject}"[:200]
    send_mail(subject, "\n\n".join(body), None, [address.strip() for address in addresses])


LOOK_SECONDS = 60.0
LONGEST_SECONDS = 60.0
"""Of one message. After it another is tried, and the first is left to its thread. It is less than
the two minutes after which a message is sent again."""
TEST_SECONDS = 15.0
"""How long a page waits for a test to be sent."""
MOST_TRIES = 24
"""With pauses of up to an hour: for most of a day."""
MOST_LISTED = 50
"""Situations in one message."""

LOOKED = 3
"""The row of ``StoredMetrics`` that says when a worker looked."""
BEGIN_LOOK = f"""
INSERT INTO django_jobs_storedmetrics AS looked (id, taken_at, values, seconds)
VALUES ({LOOKED}, now(), '{{}}', 0)
ON CONFLICT (id) DO UPDATE SET taken_at = now()
WHERE abs(extract(epoch FROM now() - looked.taken_at)) > %(recent)s::float8
RETURNING 1
"""
OPEN = """
INSERT INTO django_jobs_alert
    (rule, situation, subject, problem, began_at, send_after, attempts)
SELECT rule, situation, subject, problem, now(), now() + make_interval(secs => hold), 0
FROM jsonb_to_recordset(%(found)s::jsonb)
    AS found (rule text, situation text, subject text, problem text, hold float8)
ON CONFLICT (rule, situation, subject) WHERE ended_at IS NULL DO NOTHING
"""
CLOSE = """
UPDATE django_jobs_alert AS alert SET ended_at = now()
WHERE ended_at IS NULL AND rule = ANY(%(rules)s::text[]) AND situation = ANY(%(looked)s::text[])
  AND NOT EXISTS (
      SELECT FROM jsonb_to_recordset(%(found)s::jsonb)
          AS found (rule text, situation text, subject text)
      WHERE (found.rule, found.situation, found.subject)
          = (alert.rule, alert.situation, alert.subject))
"""
FORGET = """
DELETE FROM django_jobs_alert
WHERE ended_at < now() - interval '7 days'
   OR began_at < now() - interval '7 days' AND NOT rule = ANY(%(rules)s::text[])
"""
ONE_AT_A_TIME = "SELECT pg_try_advisory_xact_lock(hashtextextended('django_jobs.alerts', 0))"
# The begin and the end of a situation are sent once each, in one message with all others that wait.
# A message counts from when it was tried, so one that is being sent counts too.
TAKE = f"""
WITH waiting AS (
    SELECT id FROM django_jobs_alert
    WHERE rule = %(rule)s AND situation = ANY(%(on)s::text[]) AND attempts < {MOST_TRIES}
      AND (attempts = 0
           OR tried_at < now() - least(interval '1 hour', interval '1 min' * 2 ^ attempts))
      AND (begin_sent_at IS NULL AND send_after <= coalesce(ended_at, now())
           OR begin_sent_at IS NOT NULL AND ended_at IS NOT NULL AND end_sent_at IS NULL)
      AND %(most)s > (
          SELECT count(DISTINCT at) FROM django_jobs_alert AS sent
          CROSS JOIN LATERAL (VALUES (begin_sent_at), (end_sent_at), (tried_at)) AS times (at)
          WHERE sent.rule = %(rule)s AND at > now() - interval '1 hour')
    ORDER BY began_at, id LIMIT {MOST_LISTED}
)
UPDATE django_jobs_alert AS alert SET tried_at = now(), attempts = attempts + 1
FROM waiting WHERE alert.id = waiting.id
RETURNING alert.id, situation, subject, problem, began_at, ended_at, tried_at
"""
# A message that was taken again meanwhile is noted by who took it last.
NOTE_SENT = """
UPDATE django_jobs_alert SET attempts = 0, begin_sent_at = coalesce(begin_sent_at, tried_at),
    end_sent_at = CASE WHEN id = ANY(%(ended)s::bigint[]) THEN tried_at END
WHERE id = ANY(%(ids)s::bigint[]) AND tried_at = %(tried_at)s
"""


class Message(Thread):
    """Sends one message, or a test without rows, in a thread for which nothing waits."""

    def __init__(self, rule: str, to: str, rows: list[dict[str, Any]]) -> None:
        super().__init__(name="django_jobs-alert", daemon=True)
        self.rule, self.rows = rule, rows
        self.error: BaseException | None = None
        self.began_at = time.monotonic()
        self._to = to

    def run(self) -> None:
        situations = [
            {
                **{key: row[key] for key in ("situation", "subject", "problem")},
                "began_at": row["began_at"].isoformat(),
                "ended_at": row["ended_at"] and row["ended_at"].isoformat(),
            }
            for row in self.rows
        ]
        try:
            test = not self.rows
            send(self._to, {"rule": self.rule, "test": test, "situations": situations})
        except BaseException as error:  # a thread ends silently by the SystemExit of sys.exit()
            self.error = error
        finally:
            connections.close_all()  # a function of the project may have opened some

    def problem(self) -> str:
        """Why it was not sent until now; empty if it was."""
        error = TimeoutError() if self.is_alive() else self.error
        return "" if error is None else why_not_sent(error)


class Alerting:
    """Knows when this worker looked, and what it is sending."""

    def __init__(self) -> None:
        self._looks_at = 0.0
        self._sending: Message | None = None

    def run_once(self) -> int:
        """Note what was sent, look if it is time, and begin to send one message; return how many
        are being sent."""
        if self._sending is not None:
            took = time.monotonic() - self._sending.began_at
            if self._sending.is_alive() and took <= LONGEST_SECONDS:
                return 1
            note(self._sending)  # if the database does not answer, it is noted later
            self._sending = None
        rules: Mapping[str, Any] = conf().alerts
        if time.monotonic() >= self._looks_at:
            self._looks_at = time.monotonic() + LOOK_SECONDS
            look(rules)
        self._sending = next(filter(None, map(take, rules, rules.values())), None)
        if self._sending is not None:
            self._sending.start()
        return int(self._sending is not None)


def send_test(rule: str, to: str) -> str:
    """Send a message that says that it is a test; return why it was not sent within
    :data:`TEST_SECONDS`, empty if it was."""
    message = Message(rule, to, [])
    message.start()
    message.join(TEST_SECONDS)
    return message.problem()


def look(rules: Mapping[str, Mapping[str, Any]], recent: float = 0.7 * LOOK_SECONDS) -> None:
    """Open an alert for each new situation of each rule, and close those that are over, unless a
    worker did in the last ``recent`` seconds."""
    if not fetch(BEGIN_LOOK, {"recent": recent}):
        return
    found = look_for({name for rule in rules.values() for name in of(rule)})
    rows = [
        {
            "rule": rule,
            "situation": name,
            "subject": subject,
            "problem": problem,
            "hold": HOLD_SECONDS[name],
        }
        for rule, options in rules.items()
        for name in of(options)
        for subject, problem in found.get(name, {}).items()
    ]
    values = {"rules": list(rules), "looked": list(found), "found": json.dumps(rows)}
    for sql in (OPEN, CLOSE, FORGET):
        execute(sql, values)


def of(options: Mapping[str, Any]) -> list[str]:
    """The situations that a rule is about: those of ``on``, or all."""
    return list(options.get("on") or HOLD_SECONDS)


def take(rule: str, options: Mapping[str, Any]) -> Message | None:
    """What waits to be sent for a rule. No other worker takes it, unless it is not noted as sent
    within two minutes."""
    most = options.get("at_most_per_hour") or AT_MOST_PER_HOUR
    with transaction.atomic(using=jobs_connection().alias):
        if fetch(ONE_AT_A_TIME, {}) != [(True,)]:
            return None
        rows = fetch_named(TAKE, {"rule": rule, "on": of(options), "most": most})
    rows.sort(key=lambda row: row["id"])
    return Message(rule, options["to"], rows) if rows else None


def note(message: Message) -> None:
    """Write what was sent; what was not is tried again later."""
    fields: dict[str, Any] = {"rule": message.rule, "situations": len(message.rows)}
    if reason := message.problem():
        emit("alert_failed", logging.WARNING, **fields, reason=reason)
        return
    ended = [row["id"] for row in message.rows if row["ended_at"]]
    ids, tried_at = [row["id"] for row in message.rows], message.rows[0]["tried_at"]
    execute(NOTE_SENT, {"ids": ids, "ended": ended, "tried_at": tried_at})
    emit("alert_sent", logging.INFO, **fields)
