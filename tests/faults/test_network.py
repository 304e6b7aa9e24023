"""The network between a worker and its database breaks and says nothing (N1 to N4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.db import connection

from django_jobs.models import Job, Run
from tests.app import database_jobs, jobs
from tests.app.models import Effect
from tests.patience import PATIENCE, UNBOUNDED
from tests.worker.processes import Start, until, until_marked, until_status

from .network import BadLine, Cable, missing, no_tunnel
from .proxy import Proxy

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(bool(missing()), reason=missing()),
]
LEASE = 6
OPTIONS = ("--lease-seconds", str(LEASE), "--poll-seconds", "0.2")


@pytest.fixture
def network(transactional_db: None) -> Iterator[Cable]:
    with Cable() as own:
        yield own


@pytest.fixture
def proxy(network: Cable) -> Iterator[Proxy]:
    with Proxy(connection.settings_dict, network.near_address) as own:
        yield own


TROUBLES: dict[str, Callable[[Cable], None]] = {
    "unplugged": Cable.unplug,
    "answers are lost": Cable.lose_answers,
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_worker_cut_off_silently_stops_its_handler_before_another_starts(
    network: Cable, proxy: Proxy, start_worker: Start, tmp_path: Path, trouble: str
) -> None:
    with network.inside():
        far = start_worker(*OPTIONS, DATABASE_URL=proxy.url)
    job = database_jobs.look_for_others.enqueue(str(tmp_path / "job"))
    until_marked(tmp_path / "job")
    TROUBLES[trouble](network)
    near = start_worker(*OPTIONS)
    until(lambda: "event=fenced" in far.text(), what="it stops its handler")
    assert until_status(job, "succeeded").result == []
    until(lambda: "event=database_error" in far.text(), what="it knows that it is cut off")
    near.end()
    network.mend()
    after = [jobs.write_effect.enqueue("after") for _ in range(20)]
    for one in after:
        until_status(one, "succeeded")
    assert Effect.objects.count() == 20
    assert Run.objects.filter(job=job).count() == 2


@pytest.mark.skipif(bool(no_tunnel()), reason=no_tunnel())
def test_on_a_line_that_loses_a_fifth_every_job_is_done_once(
    transactional_db: None, start_worker: Start
) -> None:
    with BadLine() as line, Proxy(connection.settings_dict, line.near_address) as proxy:
        with line.inside():
            worker = start_worker("--poll-seconds", "0.2", DATABASE_URL=proxy.url)
        until_status(jobs.noop.enqueue(), "succeeded")
        line.lose(0.2, 0.15)
        done = [database_jobs.write_once.enqueue() for _ in range(20)]
        # Not all: after some losses in a row TCP waits for a minute, and longer.
        until(lambda: Effect.objects.count() >= 10, UNBOUNDED, "half are done on that line")
        assert line.lost > 10
        line.lose(0.0, 0.0)
        for one in done:
            until_status(one, "succeeded", UNBOUNDED)
        worker.end()
    assert Effect.objects.count() == 20
    assert not Job.objects.exclude(status="succeeded").exists()


@pytest.mark.parametrize(
    "statement",
    ["SET status = 'running'", "INSERT INTO django_jobs_run"],
    ids=["claim", "settle"],
)
def test_a_line_cut_after_a_commit_loses_and_doubles_nothing(
    network: Cable, proxy: Proxy, start_worker: Start, statement: str
) -> None:
    with network.inside():
        start_worker("--poll-seconds", "0.2", DATABASE_URL=proxy.url)
    until_status(jobs.noop.enqueue(), "succeeded")
    proxy.at_cut = network.unplug
    proxy.cut_after(statement)
    done = [jobs.write_effect.enqueue(f"{number}") for number in range(10)]
    assert proxy.was_cut.wait(PATIENCE)
    network.mend()
    for one in done:
        assert until_status(one, "succeeded", UNBOUNDED).attempt == 1
    assert Effect.objects.count() == 10
    assert Run.objects.count() == 11
