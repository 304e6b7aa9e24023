"""What all tests share."""

from __future__ import annotations

import contextlib
import gc
import importlib
import signal
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from django.apps import apps
from hypothesis import HealthCheck, settings
from pytest_django import DjangoAssertNumQueries, DjangoDbBlocker, Settings
from pytest_django.plugin import blocking_manager_key

from django_jobs import registry
from django_jobs.api import pressure
from django_jobs.api import waiting as listening
from django_jobs.lifecycle import known_types, notifying, resource_outcomes
from django_jobs.models import Queue, named_row
from django_jobs.signals import worker_event
from django_jobs.worker import events
from django_jobs.worker.context import progress
from tests import sessions, today
from tests.app import hooks
from tests.factories import empty_tables
from tests.logs.schema import problem
from tests.patience import PATIENCE

pytest_plugins = ["tests.first_failure"]

# How long an example takes is the machine's business, which may stand still for seconds.
settings.register_profile(
    "patient",
    settings.get_profile(settings.get_current_profile_name()),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("patient")


gc.disable()  # while tests are collected hardly anything is garbage
COLLECTED_AT = 50_000
"""New objects after which the collector looks at them: 700 by default."""

TESTS = Path(__file__).resolve().parent
SLOW = (
    *("faults/", "monitoring/", "soak/", "testproject/", "test_chaos", "test_soak.py"),
    *("doctor/test_own_server.py", "documents/test_mistakes.py", "lifecycle/test_plans"),
    *("lifecycle/schedules/test_plans.py", "lifecycle/workflows/test_plans.py"),
    *("management/test_jobarchive_drop.py", "migrations/test_patience", "why/test_plans.py"),
    *("worker/test_bulk_operations.py", "worker/test_connections.py", "worker/test_memory.py"),
    *("worker/test_database_outage", "worker/test_resilience.py"),
    *("worker/test_schedules", "worker/test_time_limits.py"),
    *("worker/timeouts/test_limits.py", "test_architecture.py", "test_benchmarks.py"),
    *("test_again.py", "test_first_failure.py"),
    *("test_duplicates.py", "test_names.py", "test_packaging.py", "test_sql_literals.py"),
    "test_translations.py",
)
"""What takes minutes and depends on the version of Django less than all else: faults, servers of a
test's own, PostgreSQL's plans, the demo; and what looks at the sources alone."""

ONCE = (
    *SLOW,
    *("doctor/", "documents/", "domain/", "lifecycle/", "maintenance/", "metrics/", "scenes/"),
    "why/",
    *("test_docs", "test_chance.py", "test_mutants.py", "test_release.py"),
    *("admin/base/test_visible.py", "contrib/celery/", "management/test_jobcheck.py"),
    *(
        "test_grants.py",
        "worker/context/",
        "worker/health/",
        "worker/heartbeat/",
        "worker/process/",
    ),
)
"""What no version of Python and Django decides once one pair has run it: slow tests, pure rules,
statements that PostgreSQL alone reads, the documentation, rules for the tests themselves, a walk
through all pages for each permission, what the bridge to Celery does in detail, and most worker
processes. tox.ini has the pairs."""

MOST_CASES = 1
"""How many cases of a parametrized test each pair runs. What a version decides, it decides for all
of them; their rule is tested by the pair that runs all."""

WHOLE = ("backend/", "browser/", "contrib/")
"""What the README's environment skips in part, or others wrote: the pairs run all cases."""

EVERYWHERE = (
    *("worker/process/test_worker_process.py", "management/test_burst.py"),
    *("backend/", "documents/test_blocks.py"),
    *(f"contrib/celery/test_{name}.py" for name in ("tasks", "canvas", "options", "results")),
    *(
        f"contrib/celery/test_{name}.py"
        for name in ("retries_sent", "worker", "packages", "suites")
    ),
)
"""Of the tests with worker processes, two thirds of the time, those that every pair runs: start,
claim, failure, time-out, isolated child, drain; Django's Tasks, Wagtail, and the quick start."""


def _is_once(path: str) -> bool:
    return path.startswith(ONCE) and not path.startswith(EVERYWHERE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A pair need not load the modules of which it runs no test: half of them."""
    path = collection_path.relative_to(TESTS).as_posix() if collection_path != TESTS else ""
    skipped = config.option.markexpr == "not once" and path.endswith(".py") and _is_once(path)
    return True if skipped else None


def processes_of(config: pytest.Config) -> int:
    """How many processes of xdist run all tests, if this is one of them."""
    worker = getattr(config, "workerinput", {"workercount": 0})
    return worker["workercount"] if config.args == config.getini("testpaths") else 0


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """In a fresh clone, each process of xdist would rewrite the assertions of all modules: 65 s of
    CPU together, and 44 if each begins elsewhere and finds what the others have written."""
    if processes := processes_of(session.config):
        modules = [
            path.relative_to(TESTS.parent)
            for path in sorted(TESTS.rglob("test_*.py"))
            if not pytest_ignore_collect(path, session.config)
        ]
        number = int(session.config.workerinput["workerid"].removeprefix("gw"))
        begin = len(modules) * number // processes
        for module in (*modules[begin:], *modules[:begin]):
            with contextlib.suppress(Exception, pytest.skip.Exception):  # its collection will tell
                importlib.import_module(".".join(module.with_suffix("").parts))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What stays is not looked at by each full collection: together a sixth of the CPU. Behind it
    a full one comes as soon as a test has made some 1,000 objects that last, and walked all others
    since: a twelfth of the CPU."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_AT)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    cases = Counter[str]()
    for item in items:
        path = item.path.relative_to(TESTS).as_posix()
        if path.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
        function = item.nodeid.partition("[")[0]
        cases[function] += 1
        once = bool(item.get_closest_marker("processes")) and not path.startswith(EVERYWHERE)
        once |= cases[function] > MOST_CASES and not path.startswith(WHOLE)
        if once or _is_once(path) or item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.once)
    yield
    if processes_of(config) and not config.pluginmanager.hasplugin("randomly"):
        items[:] = mixed(items)


def mixed(items: list[pytest.Item]) -> list[pytest.Item]:
    """Module by module, those that wait for other processes evenly among those that use a CPU. In
    the order of pytest-django they come last, and in the last two minutes one CPU was idle."""
    modules: dict[Path, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.path, []).append(item)
    number = Counter[bool]()
    place: dict[Path, tuple[bool, int]] = {}
    for path, tests in sorted(modules.items()):
        waits = any(test.get_closest_marker("processes") for test in tests)
        waits |= any(test.get_closest_marker("slow") for test in tests)
        place[path] = waits, number[waits]
        number[waits] += len(tests)
    order = sorted(place, key=lambda path: place[path][1] / number[place[path][0]])
    return [test for path in order for test in modules[path]]


@pytest.fixture
def fresh_tables(db: None) -> None:
    """``empty_tables`` for a test that looks at a plan."""
    empty_tables()


_DATABASE = pytest.StashKey[bool]()
"""Whether there is a database."""


@pytest.fixture(scope="session")
def django_db_setup(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, request: pytest.FixtureRequest
) -> None:
    with django_db_blocker.unblock():
        today.follow()
    request.config.stash[_DATABASE] = True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """No autouse fixture: the transaction of the test would end what it makes."""
    today.wait_if_it_ends()
    if item.config.stash.get(_DATABASE, False):
        with item.config.stash[blocking_manager_key].unblock():
            today.follow()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """The thread that hears of ends has ended before the database is taken from the test. It looks
    once more after its last caller, and pytest then gave its error to a test behind (CI)."""
    for thread in threading.enumerate():
        if thread.name == "django_jobs-ends":
            thread.join(PATIENCE)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that waits for a lock fails by its time limit, which says nothing of who held it."""
    report = yield
    if report.failed and item.get_closest_marker("django_db"):
        report.sections.append((sessions.TITLE, sessions.summary()))
    return report


def pytest_configure(config: pytest.Config) -> None:
    """The schedules and workflows of the demo are not written to the tests' tables.

    Workers that are started here hear SIGINT and SIGHUP, also where a shell put this process into
    the background, or ``nohup`` started it: a process inherits what is ignored, and not what is
    caught."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # A hangup ends xdist's workers with the process that started them, if that hears it.
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN or hasattr(config, "workerinput"):
        signal.signal(signal.SIGHUP, lambda *_: None)
    for name, fields in registry.schedules().items():
        if fields["job_type"].startswith("demo."):
            registry.forget_schedule(name)
    for workflow in registry.workflows():
        if workflow.name.startswith("shop."):
            registry.forget_workflow(workflow.name)


@pytest.fixture
def hooked(settings: Settings) -> Iterator[Callable[..., None]]:
    """Names hooks of ``tests.app.hooks`` in the setting."""

    def hook(*names: str) -> None:
        paths = [f"{hooks.PATH}{name}" for name in names]
        settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "HOOKS": paths}

    yield hook
    hooks.tenant.set("nobody")
    hooks.seen.clear()
    hooks.changes.clear()


@pytest.fixture(autouse=True)
def _events_are_in_the_table() -> Iterator[None]:
    """What this process emits has its level and its keys in the table of events."""
    problems: list[str] = []

    def look(sender: str, level: int, fields: dict[str, object], **others: object) -> None:
        problems.append(problem(sender, level, fields))

    worker_event.connect(look)
    yield
    worker_event.disconnect(look)
    assert not any(problems), problems


@pytest.fixture(autouse=True, scope="module")
def _nothing_left_declared() -> Iterator[None]:
    """A schedule or an app that a module leaves in its process is found by the tests behind it, or
    sent by the workers that they start: three times a test elsewhere failed by chance."""

    def declared() -> tuple[set[str], set[str]]:
        with_models = {label for label, models in apps.all_models.items() if models}
        return set(registry.schedules()), with_models

    before = declared()
    yield
    assert declared() == before


@pytest.fixture
def django_assert_num_queries(
    django_assert_num_queries: DjangoAssertNumQueries, monkeypatch: pytest.MonkeyPatch
) -> DjangoAssertNumQueries:
    """Counts the NOTIFY of a queue with its first enqueue alone, however long the machine stands
    still before the second: a process sends one in 20 ms."""
    monkeypatch.setattr(notifying, "THROTTLE_SECONDS", 3600.0)
    return django_assert_num_queries


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the queues or the throttles of another. A busy machine, which may stand still
    for ten seconds, makes no cached row expire."""
    monkeypatch.setattr(named_row, "RECENT_SECONDS", 3600.0)
    monkeypatch.setattr(listening, "LINGER_SECONDS", 0.05)
    Queue.objects.forget_recent()
    pressure.forget_recent()
    resource_outcomes.forget_recent()
    known_types.forget_recent()
    notifying._last_sent.clear()
    events._emitted_at.clear()
    progress._unstored.clear()
