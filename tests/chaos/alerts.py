"""Alerts of situations that come and end in the storm: each begin and each end is sent once, and
again only if who sent it was gone before it noted that."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from .partitions import Database
from .timing import ALERT_AGAIN

ACCOUNT = 30
RESOURCE = "breaks"
PAUSE = 9.0, 13.0
"""Seconds from one change of its breaker to the next: the numbers that are looked at are up to five
seconds old, and in an outage nobody looks."""
BEGIN, AFTER = 15.0, 10.0
"""Seconds until the workers are there, and after the storm's."""
SLOW = 0.3
"""Seconds that a message takes."""

MAKE = """
CREATE TABLE accounts.alert (
    id bigserial, alert bigint, tried_at timestamptz, is_note boolean, began boolean, ended boolean
);
CREATE FUNCTION accounts.note_alert() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO accounts.alert (alert, tried_at, is_note, began, ended)
    SELECT NEW.id, NEW.tried_at, NEW.attempts = 0, NEW.begin_sent_at IS NOT NULL,
        CASE WHEN NEW.attempts = 0 THEN NEW.end_sent_at ELSE NEW.ended_at END IS NOT NULL;
    RETURN NULL;
END $$;
CREATE TRIGGER note_alert AFTER UPDATE ON django_jobs_alert FOR EACH ROW
    WHEN (NEW.attempts <> OLD.attempts OR NEW.begin_sent_at IS DISTINCT FROM OLD.begin_sent_at
          OR NEW.end_sent_at IS DISTINCT FROM OLD.end_sent_at)
    EXECUTE FUNCTION accounts.note_alert();
"""
"""A ledger of who takes a message, with what it says, and who notes that it was sent."""

LEDGER = """
SELECT alert, extract(epoch FROM tried_at)::float8, is_note, began, ended
FROM accounts.alert ORDER BY id
"""
SITUATIONS = """
SELECT id, situation, subject, began_at, ended_at, begin_sent_at IS NOT NULL,
    end_sent_at IS NOT NULL FROM django_jobs_alert ORDER BY situation, subject, began_at
"""
WAITING = """
SELECT count(*) FROM django_jobs_alert
WHERE begin_sent_at IS NULL OR end_sent_at IS NULL AND ended_at IS NOT NULL
"""
OVER = f"""
SELECT count(*) > 0, bool_and(ended_at IS NOT NULL) FROM django_jobs_alert
WHERE subject = '{RESOURCE}'
"""
TURN = f"UPDATE django_jobs_resource SET breaker_state = '{{}}' WHERE name = '{RESOURCE}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toggle:
    """The breaker of the resource opens or closes ``at`` these seconds."""

    at: float
    is_open: bool


def events(seed: int, seconds: float) -> list[Toggle]:
    """The storm's, in order of time. The last one closes it."""
    choice = random.Random(f"{seed}-alerts")
    made: list[Toggle] = []
    at = BEGIN
    while at < seconds + AFTER or len(made) % 2:
        made.append(Toggle(at=round(at, 3), is_open=len(made) % 2 == 0))
        at += choice.uniform(*PAUSE)
    return made


def send(message: dict[str, Any]) -> None:
    """What ``ALERTS`` names: a line for each situation."""
    from .lines import note

    time.sleep(SLOW)
    for one in message["situations"]:
        words = one["situation"], one["subject"] or "-", one["began_at"], one["ended_at"] or "-"
        note(".alerts", *words)


def problems(database: Database, effects: Path) -> Iterator[tuple[int, str]]:
    """What was sent too often, too rarely or twice at a time."""
    sent = Counter(_sent(effects))
    rows = database.fetch(SITUATIONS)
    takes, found = _takes(database.fetch(LEDGER))
    if found:
        yield ACCOUNT, f"taken or noted wrongly: {len(found)} times, such as {found[:3]}"
    before: Sequence[Any] = (None,) * 5
    for row in rows:
        alert, situation, subject, began_at, _, begin_noted, end_noted = row
        name = f"{situation} {subject} since {began_at}"
        if before[1:3] == row[1:3] and (before[4] is None or before[4] > began_at):
            yield ACCOUNT, f"{name}: began before the one before it had ended"
        before = row
        key = situation, subject or "-", began_at
        begins, ends = sent.pop((*key, False), 0), sent.pop((*key, True), 0)
        taken = takes[alert, False], takes[alert, True]
        if begins > taken[0] or ends > taken[1]:
            yield ACCOUNT, f"{name}: sent {(begins, ends)} times, and taken {taken} times"
        if (begin_noted and not begins + ends) or (end_noted and not ends):
            yield ACCOUNT, f"{name}: noted as sent, and was not"
    if sent:
        yield ACCOUNT, f"sent of no situation: {list(sent)[:3]}"
    if not any(row[2] == RESOURCE and row[6] for row in rows):
        yield ACCOUNT, "no situation began and ended, so nothing was tried"


def _takes(ledger: list[Any]) -> tuple[Counter[tuple[int, bool]], list[str]]:
    """How often each begin and each end was taken to be sent, and what was taken wrongly."""
    takes: Counter[tuple[int, bool]] = Counter()
    taken_at: dict[int, float] = {}
    noted: dict[int, tuple[bool, bool]] = {}
    found = []
    for alert, at, is_note, began, ended in ledger:
        if is_note:
            if noted.get(alert, (False, False)) > (began, ended):
                found.append(f"alert {alert}: what was noted as sent is so no more")
            noted[alert] = began, ended
            taken_at.pop(alert, None)
            continue
        takes[alert, ended] += 1
        if noted.get(alert) == (True, ended):
            found.append(f"alert {alert}: taken again after it was noted as sent")
        if at - taken_at.get(alert, 0.0) < ALERT_AGAIN:
            found.append(f"alert {alert}: taken twice within {at - taken_at[alert]:.1f} s")
        taken_at[alert] = at
    return takes, found


def _sent(effects: Path) -> Iterator[tuple[str, str, datetime, bool]]:
    file = Path(f"{effects}.alerts")
    for line in file.read_text().splitlines() if file.exists() else ():
        situation, subject, began_at, ended_at = line.split()
        yield situation, subject, datetime.fromisoformat(began_at), ended_at != "-"


def counted(database: Database, effects: Path) -> dict[str, int]:
    """How much was tried."""
    sent = [*_sent(effects)]
    return {
        "situations": len(database.fetch(SITUATIONS)),
        "begins and ends sent": len(sent),
        "of them again": len(sent) - len({*sent}),
    }
