"""What became of the rows of partitions that were made and dropped during the storm.

Triggers copy each row that enters the history or the runs to a ledger, with the name of the
partition. Nothing that makes or drops partitions writes there. The views of the schema
``accounts`` show what is still there together with what went with a dropped partition. The steps of
workflows do not go with it, and may leave the history for a retry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from .timing import STALL

# The day's partitions go first, so that each row enters one of a few seconds, or the default one.
MAKE = """
DO $$
DECLARE leaf regclass;
BEGIN
    FOR leaf IN SELECT oid FROM pg_inherits JOIN pg_class ON oid = inhrelid
        WHERE inhparent IN ('django_jobs_job_history'::regclass, 'django_jobs_run'::regclass)
          AND pg_get_expr(relpartbound, oid) <> 'DEFAULT'
    LOOP
        EXECUTE format('DROP TABLE %s', leaf);
    END LOOP;
END $$;

CREATE SCHEMA accounts;
CREATE FUNCTION accounts.is_dropped(partition text) RETURNS boolean LANGUAGE sql
    RETURN to_regclass('public.' || partition) IS NULL;

CREATE TABLE accounts.ended_job (partition text, job django_jobs_job, is_step boolean);
CREATE FUNCTION accounts.note_job() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO accounts.ended_job
    VALUES (TG_TABLE_NAME, NEW, NEW.workflow_run_id IS NOT NULL);
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT ON django_jobs_job_history
    FOR EACH ROW EXECUTE FUNCTION accounts.note_job();
CREATE VIEW accounts.django_jobs_job AS
    SELECT * FROM django_jobs_job
    UNION ALL
    SELECT (job).* FROM accounts.ended_job WHERE accounts.is_dropped(partition) AND NOT is_step;

CREATE VIEW accounts.dropped_job AS
    SELECT (job).id FROM accounts.ended_job WHERE accounts.is_dropped(partition) AND NOT is_step;

CREATE TABLE accounts.ended_run (partition text, run django_jobs_run);
CREATE FUNCTION accounts.note_run() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    INSERT INTO accounts.ended_run VALUES (TG_TABLE_NAME, NEW);
    RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT ON django_jobs_run
    FOR EACH ROW EXECUTE FUNCTION accounts.note_run();
CREATE VIEW accounts.django_jobs_run AS
    SELECT * FROM django_jobs_run
    UNION ALL
    SELECT (run).* FROM (  -- one that was kept is noted twice: here and in the default partition
        SELECT DISTINCT ON ((run).id) run FROM accounts.ended_run AS ended
        WHERE (accounts.is_dropped(partition)
               OR (run).job_id IN (SELECT id FROM accounts.dropped_job))
          AND NOT EXISTS (SELECT FROM django_jobs_run AS kept WHERE kept.id = (ended.run).id)
    ) AS gone;
"""

LOOK_BACK = "ALTER DATABASE postgres SET search_path = accounts, public"

ROWS = {
    "a job that is there twice": """
        SELECT id, array_agg(tableoid::regclass::text) FROM public.django_jobs_job
        GROUP BY id HAVING count(*) > 1""",
    "a run that is there twice": """
        SELECT id, array_agg(tableoid::regclass::text) FROM public.django_jobs_run
        GROUP BY id HAVING count(*) > 1""",
    "a job that was dropped and is still there": """
        SELECT id, partition, there.tableoid::regclass::text FROM accounts.ended_job AS ended
        JOIN public.django_jobs_job AS there ON there.id = (ended.job).id
        WHERE accounts.is_dropped(partition) AND NOT is_step""",
    "a step that ended and is not there": """
        SELECT DISTINCT (job).id FROM accounts.ended_job AS ended
        WHERE is_step AND NOT EXISTS (
            SELECT FROM public.django_jobs_job AS there WHERE there.id = (ended.job).id)""",
    "a job that ended and is neither there nor in a dropped partition": """
        SELECT (job).id, partition FROM accounts.ended_job AS ended
        WHERE NOT accounts.is_dropped(partition) AND NOT is_step
          AND NOT EXISTS (SELECT FROM public.django_jobs_job AS there
                          WHERE there.id = (ended.job).id
                            AND there.tableoid = to_regclass('public.' || partition))""",
    "a run that is neither there nor in a dropped partition, and its job was not dropped": """
        SELECT (run).id, (run).job_id, partition FROM accounts.ended_run AS ended
        WHERE NOT accounts.is_dropped(partition)
          AND NOT (partition = 'django_jobs_run_default'
                   AND (run).job_id IN (SELECT id FROM accounts.dropped_job))
          AND NOT EXISTS (SELECT FROM public.django_jobs_run AS there
                          WHERE there.id = (ended.run).id
                            AND there.tableoid = to_regclass('public.' || partition))""",
    "a row that entered a partition without a note": """
        SELECT 'job', id FROM public.django_jobs_job_history
        WHERE id NOT IN (SELECT (job).id FROM accounts.ended_job)
        UNION ALL
        SELECT 'run', id FROM public.django_jobs_run
        WHERE id NOT IN (SELECT (run).id FROM accounts.ended_run)""",
    "a job that is there and has lost runs": """
        SELECT job.id, job.job_type, job.status, job.attempt,
            array_agg(run.attempt ORDER BY run.attempt)
        FROM public.django_jobs_job AS job
        LEFT JOIN public.django_jobs_run AS run ON run.job_id = job.id
        GROUP BY job.id, job.job_type, job.status, job.attempt
        HAVING count(run.id) <> job.attempt""",
    "a run in the default partition whose job was dropped": """
        SELECT id, job_id, attempt, outcome FROM public.django_jobs_run_default
        WHERE job_id IN (SELECT id FROM accounts.dropped_job)""",
    "a partition that is neither attached nor dropped": """
        SELECT relname FROM pg_class
        WHERE relname ~ '^django_jobs_(job|run)_[0-9]+$' AND NOT relispartition""",
}

COUNTED = """
SELECT (SELECT count(*) FROM accounts.dropped_job),
    (SELECT count(*) FROM accounts.ended_run WHERE accounts.is_dropped(partition)),
    (SELECT count(*) FROM public.django_jobs_job_history_default),
    (SELECT count(*) FROM accounts.ended_run AS ended
     JOIN public.django_jobs_run_default AS kept ON kept.id = (ended.run).id
     WHERE accounts.is_dropped(partition)),
    (SELECT count(*) FROM accounts.ended_job WHERE accounts.is_dropped(partition) AND is_step)
"""

ENTERED = """
SELECT (job).id FROM accounts.ended_job WHERE partition = '{name}' AND NOT is_step
"""

REFUSED_WITHIN = 0.15 + STALL
"""Seconds that a drop of a partition in use may take: the wait for its lock, and the machine."""


class Database(Protocol):
    """What runs statements."""

    def execute(self, sql: str) -> None:
        """Run one that returns nothing."""

    def fetch(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one and return its rows."""


def make(database: Database) -> None:
    """Before anything is enqueued."""
    database.execute(MAKE)


def look_back(database: Database) -> None:
    """From now on the accounts read what was dropped too."""
    database.execute(LOOK_BACK)


def problems(database: Database, directory: Path) -> Iterator[tuple[int, str]]:
    """Rows that are lost or doubled, and drops that were not as promised."""
    for name, sql in ROWS.items():
        if rows := database.fetch(sql):
            yield 17, f"{name}: {len(rows)}, such as {rows[:3]}"
    found = _found(directory)
    for wrong in found["wrong"]:
        yield 17, wrong
    if found["slowest"] > REFUSED_WITHIN:
        yield 17, f"a drop of a partition in use took {found['slowest']:.2f} s"
    if not found["counts"].get("partitions dropped"):
        yield 17, "no partition was dropped, so nothing was tried"
    for name in found["archived"]:
        if problem := _not_in_file(database, directory / "archive", name):
            yield 17, f"{name} was dropped from its file, which {problem}"


def _not_in_file(database: Database, files: Path, name: str) -> str | None:
    """What is wrong with the file of a dropped partition. The steps in it have stayed."""
    paths = list(files.glob(f"{name}*.jsonl"))
    if not paths:
        return "does not exist"
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    written = {row["id"] for row in rows if row["workflow_run_id"] is None}
    entered = {id_ for (id_,) in database.fetch(ENTERED.format(name=name))}
    return f"lacks {sorted(entered - written)[:3]}" if entered - written else None


def counted(database: Database, directory: Path) -> dict[str, int]:
    """What was done, and how many rows it concerned."""
    names = ("jobs dropped", "runs dropped", "jobs without a partition", "runs kept", "steps kept")
    rows = dict(zip(names, database.fetch(COUNTED)[0], strict=True))
    return {**_found(directory)["counts"], **rows}


def _found(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "partitions.json").read_text())
    return found
