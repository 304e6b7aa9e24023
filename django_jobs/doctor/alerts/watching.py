"""Looks for situations once a minute, by one worker of the fleet, and sends each once."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from threading import Thread
from typing import Any

from django.db import connections, transaction

from ...conf import conf
from ...domain.alerts import AT_MOST_PER_HOUR, HOLD_SECONDS
from ...models.database import execute, fetch, fetch_named, jobs_connection
from ...signals import worker_event
from .sending import send, why_not_sent
from .situations import look_for

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
RETURNING alert.id, situation, subject, problem, began_at, ended_at
"""
NOTE_SENT = """
UPDATE django_jobs_alert SET attempts = 0, begin_sent_at = coalesce(begin_sent_at, tried_at),
    end_sent_at = CASE WHEN id = ANY(%(ended)s::bigint[]) THEN tried_at END
WHERE id = ANY(%(ids)s::bigint[])
"""


class Message(Thread):
    """Sends one message, or a test without rows. No connection and no schedule waits for it, which
    are of other threads."""

    def __init__(self, rule: str, to: str, rows: list[dict[str, Any]]) -> None:
        super().__init__(name="django_jobs-alert", daemon=True)
        self.rule, self.rows = rule, rows
        self.error: Exception | None = None
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
        except Exception as error:
            self.error = error
        finally:
            connections.close_all()  # a function of the project may have opened some


class Alerting:
    """Knows when this worker looked, and what it is sending."""

    def __init__(self) -> None:
        self._looks_at = 0.0
        self._sending: Message | None = None

    def run_once(self) -> int:
        """Note what was sent, look if it is time, and begin to send one message; return how many
        are being sent."""
        if self._sending is not None:
            if self._sending.is_alive() and not self._is_overdue(self._sending):
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

    def _is_overdue(self, message: Message) -> bool:
        return time.monotonic() - message.began_at > LONGEST_SECONDS


def send_test(rule: str, to: str) -> None:
    """Send a message that says that it is a test. Raises what the mail server, the webhook or the
    function raises, and ``TimeoutError`` after :data:`TEST_SECONDS`."""
    message = Message(rule, to, [])
    message.start()
    message.join(TEST_SECONDS)
    if message.is_alive():
        raise TimeoutError
    if message.error is not None:
        raise message.error


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
    if message.is_alive() or message.error is not None:
        error = message.error or TimeoutError()
        fields["reason"] = why_not_sent(error)
        worker_event.send_robust("alert_failed", level=logging.WARNING, fields=fields)
        return
    ended = [row["id"] for row in message.rows if row["ended_at"]]
    execute(NOTE_SENT, {"ids": [row["id"] for row in message.rows], "ended": ended})
    worker_event.send_robust("alert_sent", level=logging.INFO, fields=fields)
