"""What the gates let through, by a ledger that triggers write: no limit is ever exceeded.

A slot is taken when a job with gates becomes ready, and free when it is neither ready nor running.
The order of the ledger is that of the changes. An admission counts what is committed, and so what
it takes comes in the ledger after what it has counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .partitions import Database

SLOTS = {"key one": 1, "key three": 3, "resource slots": 3, "tenant capped": 2}
"""Slots of each gate that has some."""

RATE, BURST = 10.0, 3
"""Of a resource and a tenant: starts in a second, and at once."""
RATED = "resource calls", "tenant metered"

ACCOUNT = {"key": 18, "resource": 19, "rate": 20, "tenant": 21}

MAKE = """
CREATE TABLE accounts.slot (
    id bigserial, txid xid8 DEFAULT pg_current_xact_id(),
    at timestamptz DEFAULT clock_timestamp(), gate text, change integer, job_type text
);
CREATE FUNCTION accounts.note_slot() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    job public.django_jobs_job_live;
BEGIN
    IF TG_OP = 'DELETE' THEN job := OLD; ELSE job := NEW; END IF;
    INSERT INTO accounts.slot (gate, change, job_type)
    SELECT gate, CASE WHEN TG_OP <> 'DELETE' AND job.status IN ('ready', 'running')
                 THEN 1 ELSE -1 END, job.job_type
    FROM (SELECT 'key ' || job.concurrency_key UNION ALL SELECT 'tenant ' || job.tenant
          UNION ALL SELECT 'resource ' || jsonb_array_elements_text(job.resources)) AS one (gate)
    WHERE gate IS NOT NULL;
    RETURN NULL;
END $$;
CREATE TRIGGER note_insert AFTER INSERT ON django_jobs_job_live FOR EACH ROW
    WHEN (NEW.gates IS NOT NULL AND NEW.status IN ('ready', 'running'))
    EXECUTE FUNCTION accounts.note_slot();
CREATE TRIGGER note_update AFTER UPDATE ON django_jobs_job_live FOR EACH ROW
    WHEN (NEW.gates IS NOT NULL AND (OLD.status IN ('ready', 'running'))
          <> (NEW.status IN ('ready', 'running')))
    EXECUTE FUNCTION accounts.note_slot();
CREATE TRIGGER note_delete AFTER DELETE ON django_jobs_job_live FOR EACH ROW
    WHEN (OLD.gates IS NOT NULL AND OLD.status IN ('ready', 'running'))
    EXECUTE FUNCTION accounts.note_slot();
"""

# A settle frees slots and hands them over at once: what counts is the sum of its changes.
TAKEN = """
SELECT gate, max(taken), (array_agg(taken ORDER BY first DESC))[1], count(*)
FROM (
    SELECT gate, first, sum(change) OVER (PARTITION BY gate ORDER BY first) AS taken
    FROM (
        SELECT gate, min(id) AS first, sum(change) AS change FROM accounts.slot GROUP BY gate, txid
    ) AS one
) AS state
GROUP BY gate ORDER BY gate
"""

STARTS = """
SELECT extract(epoch FROM at)::float8 FROM accounts.slot
WHERE gate = %s AND change > 0 ORDER BY at
"""


def make(database: Database) -> None:
    """Before anything is enqueued, and after the partitions are made."""
    database.execute(MAKE)


def problems(database: Database) -> Iterator[tuple[int, str]]:
    """Limits that were exceeded, slots that nobody holds and that are not free."""
    states = {gate: (int(most), int(last)) for gate, most, last, _ in database.fetch(TAKEN)}
    for gate, slots in SLOTS.items():
        number = ACCOUNT[gate.split()[0]]
        most, last = states.get(gate, (0, 0))
        if most > slots:
            yield number, f"{gate}: {most} taken of {slots} slots"
        if most < slots:
            yield (
                number,
                f"{gate}: at most {most} of {slots} slots were taken, so nothing was tried",
            )
        if last:
            yield number, f"{gate}: {last} slots are taken in the end"
    for gate in RATED:
        starts = [at for (at,) in database.fetch(STARTS, [gate])]
        if len(starts) <= BURST:
            yield ACCOUNT["rate"], f"{gate}: {len(starts)} used the rate, so nothing was tried"
        elif (excess := most_excess(starts)) > 0.01:
            yield (
                ACCOUNT["rate"],
                f"{gate}: in one window {excess:.2f} more starts than burst + rate",
            )


def most_excess(starts: Sequence[float], rate: float = RATE, burst: float = BURST) -> float:
    """By how much the starts of any window are more than the burst and what came in meanwhile. It
    is the bucket that says so: one that is full at first and would have to hold less than none."""
    tokens, before, lowest = float(burst), starts[0], 0.0
    for at in starts:
        tokens = min(tokens + rate * (at - before), burst) - 1
        before, lowest = at, min(lowest, tokens)
    return -lowest


def counted(database: Database) -> dict[str, int]:
    """How often slots were taken or became free."""
    return {"changes of taken slots": sum(count for *_, count in database.fetch(TAKEN))}
