"""How long the pages of the console take beside a million jobs, and what they take from a worker.

At full size it needs 4 GB and some minutes. It runs only if it is named.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from statistics import median

from django.contrib.auth import get_user_model
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_jobs.admin.failures import GROUPS
from django_jobs.models import DeadLetter, Job, StoredMetrics, Worker, WorkflowRun
from tests.browser import shop
from tests.browser.large import make_large_scene
from tests.browser.pages import console_pages, filtered_pages

from .database import drained_per_second, drop_past_days, empty, fetch, fill
from .measuring import Figure, progress, repeat
from .workers import run_worker

MILLISECONDS, OVERVIEW_MILLISECONDS, QUERIES = 150, 100, 15
CONSOLES, REFRESH_SECONDS = 10, 5
OVERVIEW = reverse("admin:django_jobs_overview_changelist")

SEARCHES = (
    *("q=customer_id:42", "q=args.order_id:100042", "q=order_id:1", "q=error:TimeoutError"),
    *(
        "job_type=media.transcode",
        "job_type=app.noop",
        "q=type:media.transcode",
        "q=key:contact-42",
        "q=tag:none",
        "q=nothing-like-it",
    ),
    *("status=cancelled&queue=critical", "status=succeeded&queue=media", "p=199"),
    *("tag=none", "tenant=acme", "tenant=none", "schedule=reindex", "workflow=orders.fulfil"),
)
"""Of the list of jobs, besides the filters that offer their choices."""


def pages(times: int, scale: float) -> list[Figure]:
    """The time of the server for each page and each filter, warm, and its queries."""
    with shop.declared():
        fill_shop(scale)
        client = client_of_staff()
        paths = [
            *console_pages(get_user_model().objects.get()),
            *filtered_pages(client),
            *searches(),
        ]
        figures = [page_figure(client, path, times) for path in dict.fromkeys(paths)]
        return [*figures, page_figure(client, OVERVIEW, times, before=_make_due)]


def drain(times: int, scale: float) -> list[Figure]:
    """A drain while ten consoles refresh the overview, to one without any."""
    count = int(60_000 * scale)

    def rate(consoles: int) -> float:
        empty()
        fill(count)
        with ExitStack() as open_consoles:
            for number in range(consoles):
                open_consoles.enter_context(_refreshing(number * REFRESH_SECONDS / consoles))
            run_worker()
        return drained_per_second(count)

    values, alone = repeat(times, partial(rate, CONSOLES), partial(rate, 0))
    title = f"drain of {count:,} with {CONSOLES} consoles"
    return [Figure(title, "jobs/s", values, alone, "none")]


def _list(model: type[Model]) -> str:
    return reverse(f"admin:django_jobs_{model._meta.model_name}_changelist")


def searches() -> Iterator[str]:
    """Lists of jobs, also by the id of another row, or by what one has."""
    yield from (f"{_list(Job)}?{search}" for search in SEARCHES)
    yield f"{_list(Job)}?worker={Worker.objects.latest('pk').pk}"
    yield f"{_list(Job)}?workflow_run={WorkflowRun.objects.latest('pk').pk}"
    dead = DeadLetter.objects.exclude(fingerprint="").latest("pk")
    yield f"{_list(DeadLetter)}?fingerprint={dead.fingerprint}"
    for search in ("at:shop/crm.py:7", "since:*"):
        yield f"{reverse(f'admin:{GROUPS}')}?q={search}"


def _make_due() -> None:
    """The stored numbers are too old for the next who looks."""
    StoredMetrics.objects.update(taken_at=datetime(1970, 1, 1, tzinfo=UTC))


def fill_shop(scale: float) -> None:
    empty()
    drop_past_days()
    begun = time.perf_counter()
    make_large_scene(scale)
    ((jobs, runs, schedules),) = fetch(
        "SELECT (SELECT count(*) FROM django_jobs_job), (SELECT count(*) FROM django_jobs_run), "
        "(SELECT count(*) FROM django_jobs_schedule)"
    )
    took = time.perf_counter() - begun
    progress.emit(f"{jobs:,} jobs, {runs:,} runs, {schedules:,} schedules in {took:,.0f} s")


def client_of_staff() -> Client:
    get_user_model().objects.filter(username="ada").delete()
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("ada"))
    return client


def page_figure(
    client: Client, path: str, times: int, before: Callable[[], object] | None = None
) -> Figure:
    if before is not None:
        before()
    with CaptureQueriesContext(connection) as queries:
        response = client.get(path)
        count = len(queries)
    values = []
    for _ in range(times):
        if before is not None:
            before()
        begun = time.perf_counter()
        client.get(path)
        values.append((time.perf_counter() - begun) * 1000)
    bar = OVERVIEW_MILLISECONDS if path == OVERVIEW else MILLISECONDS
    problems = [
        text
        for text, wrong in (
            (f"answered {response.status_code}", response.status_code not in (200, 302)),
            (f"over {bar} ms", median(values) > bar),
            (f"over {QUERIES} queries", count > QUERIES),
        )
        if wrong
    ]
    name = f"{path.removeprefix('/admin/django_jobs')}, {count} queries"
    if before is not None:
        name += ", with new numbers"
    return Figure(", ".join([name, *problems]), "ms", values, better="less", bar=f"{bar}")


@contextmanager
def _refreshing(after: float) -> Iterator[None]:
    """A console that reads the overview every five seconds, in a thread of its own."""
    ending = threading.Event()
    failed: list[BaseException] = []

    def refresh() -> None:
        try:
            client = _client_of_thread()
            wait = after
            while not ending.wait(wait):
                if client.get(OVERVIEW).status_code != 200:
                    raise RuntimeError(f"{OVERVIEW} did not answer")
                wait = REFRESH_SECONDS
        except BaseException as error:  # raised again below
            failed.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=refresh)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
    if failed:
        raise failed[0]


def _client_of_thread() -> Client:
    user, _made = get_user_model().objects.get_or_create(
        username="ada", is_staff=True, is_superuser=True
    )
    client = Client()
    client.force_login(user)
    return client
