"""Which partitions the package's statements read: the planner leaves out the others."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType

import pytest
from django.db import connection, transaction
from pytest_django import DjangoDbBlocker

import django_jobs
from django_jobs.lifecycle import dropping
from django_jobs.lifecycle.dropping import OF_KEPT_JOBS
from django_jobs.lifecycle.history import JOBS, RUNS, PartitionedTable, with_names
from tests.factories import leaves, plan_nodes, run_sql

NAMES = re.compile(r"\bdjango_jobs_(job|run)(_live|_history|_default|_history_default)?\b(?!')")
BEGINS = re.compile(r"\s*(COPY \(\s*)?(WITH|SELECT|INSERT|UPDATE|DELETE)\b")

EVERY_JOB = {
    "lifecycle.operations.quarantines.CRASHES": "the job of a crash may have ended since",
    "lifecycle.compensating.DECLARED": "the declared steps of a run, which may have ended",
    "lifecycle.compensating.NOTE_FAILED": "the steps of a run, however they ended",
    "lifecycle.opening.COUNT_DOWN_ASKED": "the results on which the next steps depend",
    "lifecycle.opening.SKIP": "names the step that is the cause, which has ended",
    "lifecycle.operations.dead_letters.FORGET_FAILED": "compensations, however they ended",
    "lifecycle.progress.ADD_TO_CHECKPOINT": "set from outside, on a job that may have ended",
    "lifecycle.pruning.PRUNE_WORKFLOWS": "the steps of a run, however they ended",
    "lifecycle.schedules.due.LAST_ENDS": "asks how jobs ended",
    "lifecycle.stored_files.UNUSED": "whether the jobs of files are there, with the setting alone",
    "lifecycle.workflows.results.FATES": "the steps before one, which have ended",
    "lifecycle.workflows.results.NAMES": "the steps of a run, however they ended",
    "lifecycle.workflows.results.OF_IDS": "steps that may have ended",
    "lifecycle.workflows.results.PARENTS": "the steps before one, which have ended",
    "lifecycle.workflows.results.STEP": "as that one",
    "lifecycle.workflows.results.TAKEN": "as that one",
    "lifecycle.workflows.restarting.BRING_BACK": "steps that were skipped",
    "lifecycle.workflows.restarting.BROKEN": "steps after steps that have ended",
    "lifecycle.workflows.restarting.BROKEN_EDGE": "as that one",
    "lifecycle.workflows.restarting.PUT_BACK": "a step that failed or was cancelled",
    "lifecycle.workflows.restarting.REOPEN": "looks for a step that was cancelled",
    "lifecycle.workflows.restarting.RESTART": "steps that failed or were cancelled",
    "lifecycle.workflows.stuck.STUCK": "waiting steps after steps that have ended",
    "lifecycle.workflows.stuck.STUCK_RUNS": "as that one",
}
"""What finds jobs by their ids that may have ended."""
HISTORY_ALONE = {
    "lifecycle.waits.FORGET_MISSED": "the waits of cancelled steps",
    "lifecycle.pruning.COUNT_EXPIRED": "counts what retention deletes",
    "lifecycle.pruning.PRUNE[django_jobs_job_history]": "deletes it",
}
RECENT_JOBS = {
    "lifecycle.operations.bulk.OUTCOMES": "replayed jobs that ended without a run since the replay",
    "lifecycle.backlog.RATES": "the queues of the runs of the last minutes",
    "lifecycle.run_totals.FOLD": "the queues of the runs since the last look",
    "metrics.forecast.COST": "the types of the runs of the last hour",
    "metrics.overview.PARTS[failures]": "the types of the failures of the last hour",
    "metrics.overview.REFRESH": "as that one",
    "metrics.forecast.SIZING": "the queues of the runs of the last hour",
}
EVERY_RUN = {
    "lifecycle.dead_letters.DELETE": "the runs of a job may have ended weeks apart",
    "lifecycle.pruning.PRUNE[django_jobs_job_history]": "as that one",
    "lifecycle.pruning.PRUNE[django_jobs_job_history_default]": "as that one",
    "lifecycle.pruning.PRUNE_WORKFLOWS": "as that one",
    "lifecycle.settling.EXPLAIN_REFUSAL": "the run may have been written at any time",
    "lifecycle.settling.SETTLE_AND_DELETE": "the runs of a job may have ended weeks apart",
    "lifecycle.settling_rows.END_UNSETTLEABLE": "the run may have been written at any time",
    "metrics.forecast.COST": "as the sizing",
    **{
        f"metrics.failures.{name}": "of dead jobs, left out by the end of each as it runs"
        for name in ("NEWEST", "VERSIONS", "VERSIONS_OF_JOBS", "ROWS", "BEGAN")
    },
    "why.due.LAST_RUN": "the last attempt of a job may have ended weeks ago",
    "metrics.forecast.SIZING": "a few of the newest by id; the newest day may have none",
}
OF_A_SCRAPE = {
    "metrics.depth.DEPTH",
    "metrics.gauges.PARTS[quarantines]",
    "metrics.gauges.PARTS[queues]",
    "metrics.gauges.PARTS[unclaimable]",
}
OF_THE_OVERVIEW = {"metrics.overview.RECENT"}
OF_A_LIMIT = {"metrics.limits.PARTS[lines]", "metrics.limits.PARTS[next]"}
OF_WHY = {"why.admission.USERS", "why.admission.JOBS_OF_TENANT"}
"""Parts of ``metrics.gauges.REFRESH``, of that of the overview, of what the page of a limit and of
what ``why`` reads, that are no statements without the rest of it."""
PERIODS = {"seconds": "600", "day": "'2020-01-01'", "since": "now() - interval '1 day'"}
FILLED = {"{column}": "queue", "{conditions}": "true", "{those}": "true", "{{}}": "{}"}
LIVE, DEFAULT = {"django_jobs_job_live"}, {"django_jobs_job_history_default"}

OF_A_PARTITION: dict[str, tuple[PartitionedTable, set[str]]] = {
    "COUNT_STEPS": (JOBS, set()),
    "DELETE_JOBS": (JOBS, {"runs"}),  # those of a job may have ended weeks apart
    "KEEP_STEPS": (JOBS, set()),
    "PRUNE_PROGRESS": (JOBS, set()),
    "PRUNE_RECEIPTS": (JOBS, set()),
    "PRUNE_RUNS": (JOBS, {RUNS.default}),
    "ALL_RUNS": (RUNS, DEFAULT),
    "DELETE_RUNS": (RUNS, LIVE | DEFAULT),
    "IDS": (RUNS, set()),
    "KEEP": (RUNS, set()),
    "LATE_RUNS": (RUNS, LIVE | DEFAULT),
    "UNSUCCESSFUL_RUNS": (RUNS, LIVE),
}
"""The statements of a drop with the name of the partition in them, and what they read besides."""


def constants(module: ModuleType) -> Iterator[tuple[str, str]]:
    """The strings of a module, and those of its dictionaries, with their names."""
    for name, value in vars(module).items():
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, dict) and name.isupper():
            named = ((f"{name}[{key}]", one) for key, one in value.items())
            yield from ((each, one) for each, one in named if isinstance(one, str))


def statements() -> Iterator[tuple[str, str]]:
    """The constants of the package that are statements and name a partitioned table; not those that
    take the name of one partition."""
    seen = set()
    for module in pkgutil.walk_packages(django_jobs.__path__, "django_jobs."):
        if {"migrations", "contrib"}.isdisjoint(module.name.split(".")):
            for name, value in constants(importlib.import_module(module.name)):
                if NAMES.search(value) and BEGINS.match(value) and "{name}" not in value:
                    if value not in seen:
                        yield f"{module.name.removeprefix('django_jobs.')}.{name}", value
                    seen.add(value)


ALL = dict(statements())
PARTS = OF_A_SCRAPE | OF_THE_OVERVIEW | OF_A_LIMIT | OF_WHY | {"lifecycle.operations.bulk._PAGE"}
STATEMENTS = {name: sql for name, sql in ALL.items() if name not in PARTS}


@pytest.fixture(scope="module")
def _two_days(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Two partitions of past days in both histories."""
    made: list[str] = []
    with django_db_blocker.unblock():
        for table, day in itertools.product(("job", "run"), (1, 2)):
            parent, default = {
                "job": ("django_jobs_job_history", "django_jobs_job_history_default"),
                "run": ("django_jobs_run", "django_jobs_run_default"),
            }[table]
            made.append(f"django_jobs_{table}_2020010{day}")
            run_sql(f"CREATE TABLE {made[-1]} (LIKE {default} INCLUDING ALL)")
            run_sql(
                f"ALTER TABLE {parent} ATTACH PARTITION {made[-1]}"
                f" FOR VALUES FROM ('2020-01-0{day} 00:00Z') TO ('2020-01-0{day + 1} 00:00Z')"
            )
        yield
        run_sql(f"DROP TABLE {', '.join(made)}")


def partitions_read(statement: str) -> set[str]:
    """The partitions that the plan reads with any parameters: those of a prepared statement
    are unknown to the planner."""
    values: list[str] = []

    def place(parameter: re.Match[str]) -> str:
        # A period of NULL seconds, or since NULL, would leave out every partition.
        values.append(PERIODS.get(parameter[1], "NULL"))
        return f"${len(values)}"

    for name, value in FILLED.items():
        statement = statement.replace(name, value)
    body = re.sub(r"%\((\w+)\)s", place, statement)
    body = body.strip().removeprefix("COPY (").removesuffix(") TO STDOUT").replace("%%", "%")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        cursor.execute(f"PREPARE looked_at AS {body}")
        call = f"looked_at({', '.join(values)})" if values else "looked_at"
        cursor.execute(f"EXPLAIN (FORMAT JSON) EXECUTE {call}")
        ((plan,),) = cursor.fetchall()
        cursor.execute("DEALLOCATE looked_at")
    scans = [node for node in plan_nodes(plan) if "Scan" in node["Node Type"]]
    return {node["Relation Name"] for node in scans if "Relation Name" in node}


@pytest.mark.django_db
@pytest.mark.usefixtures("_two_days")
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_reads_live_jobs_alone_if_it_is_not_listed(name: str) -> None:
    jobs, runs = set(leaves("django_jobs_job")), set(leaves("django_jobs_run"))
    assert len(jobs) >= 4
    assert len(runs) >= 3
    read = partitions_read(STATEMENTS[name])
    if name in EVERY_JOB:
        assert read & jobs == jobs
    elif name in HISTORY_ALONE:
        assert read & jobs == jobs - LIVE
    elif name in RECENT_JOBS:
        assert read & jobs > LIVE
        assert not [job for job in read & jobs if "2020" in job]
    else:
        assert read & jobs <= LIVE or read & jobs == DEFAULT
    if name in EVERY_RUN:
        assert read & runs == runs
    else:
        assert not [run for run in read & runs if "2020" in run]


@pytest.mark.django_db
@pytest.mark.usefixtures("_two_days")
@pytest.mark.parametrize("name", OF_A_PARTITION)
def test_statements_of_a_drop_read_their_own_partition_alone(name: str) -> None:
    table, others = OF_A_PARTITION[name]
    runs = set(leaves("django_jobs_run"))
    own = f"{table.prefix}20200101"
    statement = getattr(dropping, name)
    read = partitions_read(with_names(statement, name=own, **OF_KEPT_JOBS._asdict()))
    others = runs if others == {"runs"} else others
    assert read & (runs | set(leaves("django_jobs_job"))) == {own} | others


def test_each_statement_of_a_drop_is_listed() -> None:
    named = {name for name, value in constants(dropping) if "{name}" in value}
    assert {name for name in named if BEGINS.match(getattr(dropping, name))} == set(OF_A_PARTITION)


@pytest.mark.django_db
@pytest.mark.usefixtures("_two_days")
def test_the_statements_that_are_listed_exist_and_the_package_has_many() -> None:
    assert all(ALL[part] in STATEMENTS["metrics.gauges.REFRESH"] for part in OF_A_SCRAPE)
    assert all(ALL[part] in STATEMENTS["metrics.overview.REFRESH"] for part in OF_THE_OVERVIEW)
    assert all(ALL[part] in STATEMENTS["metrics.limits.RESOURCE"] for part in OF_A_LIMIT)
    assert {*EVERY_JOB, *HISTORY_ALONE, *RECENT_JOBS, *EVERY_RUN} <= set(STATEMENTS)
    assert len(STATEMENTS) > 40
    # The measure measures.
    assert len(partitions_read("UPDATE django_jobs_job SET queue = '' WHERE id = 1")) >= 4
