"""Numbers taken at most every five seconds for all readers: a row of ``StoredMetrics`` a kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from math import inf
from typing import Any

from ..models.database import execute, fetch, fetch_last, with_parts

Parts = dict[str, list[dict[str, Any]]]
"""The rows of each part."""

FRESH_SECONDS = 5.0
"""For how long the stored numbers are served before they are taken again."""

SCRAPED, SHOWN = 1, 2
"""The rows: the numbers of ``/metrics``, and those of the overview in the admin."""

# Numbers that are too old are not sent: 2 ms of a scrape. Numbers of the future are as old: the
# clock of the server was set back.
READ = """
SELECT CASE WHEN abs(age) < %(fresh)s::float8 THEN values END, seconds, age
FROM (
    SELECT *, extract(epoch FROM clock_timestamp() - taken_at)::float8 AS age
    FROM django_jobs_storedmetrics WHERE id = %(id)s
) AS stored
"""
BEGIN = """
INSERT INTO django_jobs_storedmetrics (id, taken_at, values, seconds)
VALUES (%(id)s, 'epoch', '{}', 0) ON CONFLICT DO NOTHING
"""
# The planner takes the bounds for far larger than they are. To compile would take a second.
PLAIN = "SET LOCAL jit = off"
# PostgreSQL computes the new values only for a row that is updated: of those that look at the
# same time one takes the numbers, and the others find the row locked or fresh.
REFRESH = """
WITH due AS MATERIALIZED (
    SELECT id FROM django_jobs_storedmetrics
    WHERE id = %(id)s
      AND abs(extract(epoch FROM clock_timestamp() - taken_at)) > %(fresh)s::float8
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE django_jobs_storedmetrics AS stored SET taken_at = statement_timestamp(),
    values = ({values}),
    seconds = extract(epoch FROM clock_timestamp() - statement_timestamp())
FROM due WHERE stored.id = due.id
RETURNING stored.values, stored.seconds,
    extract(epoch FROM clock_timestamp() - stored.taken_at)::float8
"""


class NoMetrics(Exception):
    """Another process takes the first metrics of this database."""


def statement(start: str, parts: Mapping[str, str]) -> str:
    """The statement that stores the ``parts``, each a query, after ``start``, its common tables."""
    return REFRESH.replace("{values}", with_parts(parts, start))


def read_stored(
    row: int, refresh: str, parameters: Mapping[str, Any], names: AbstractSet[str]
) -> Parts:
    """The stored numbers of a row, with the parts of these ``names``. Their age, and what it took
    to read them, are the part ``stored``.

    They are taken now by the statement ``refresh`` if they are older than five seconds, or lack a
    part because other code stored them, unless another session does that already. Raises
    :class:`NoMetrics` if there are none yet.
    """
    which = {"id": row, "fresh": FRESH_SECONDS}
    rows = fetch(READ, which)
    if not rows:
        execute(BEGIN, which)
    is_old = not rows or rows[0][0] is None
    values = {} if is_old else json.loads(rows[0][0])
    if is_old or not names <= values.keys():
        given = {**parameters, **which, "fresh": FRESH_SECONDS if is_old else 0.0}
        rows = fetch_last((PLAIN, refresh), given) or fetch(READ, {**which, "fresh": inf})
        values = json.loads(rows[0][0])
    if not names <= values.keys():
        raise NoMetrics("The first metrics are being taken. Try again.")
    _, seconds, age = rows[0]
    return {**values, "stored": [{"seconds": seconds, "age": age}]}
