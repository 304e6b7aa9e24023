"""A client is called at the end of its job: signed, retried, and at allowed hosts alone."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pytest_django import Settings

from django_jobs import current_run, registry
from django_jobs.domain.callbacks import hosts_problem, secrets_for
from django_jobs.lifecycle.operations.jobs import replay
from django_jobs.models import Job, JobStatus, Queue, Run, WorkflowRun
from django_jobs.testing import run_jobs
from tests.app.jobs import add
from tests.factories import claim_ready, declared, failure, register_worker, settle_one
from tests.http.conftest import URL, JsonClient
from tests.receivers import Receiver, webhook

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.app.http_urls")]

OLD, NEW = (f"whsec_{base64.b64encode(bytes([n]) * 32).decode()}" for n in (1, 2))
LONG = timedelta(days=2)
"""Longer than all retries."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with webhook() as receiver:
        yield receiver


@pytest.fixture
def url(client: JsonClient, receiver: Receiver, settings: Settings) -> str:
    """An address of the receiver, whose host is allowed."""
    allow(settings, {f"127.0.0.1:{receiver.port}": f"{NEW} {OLD}"})
    return f"http://127.0.0.1:{receiver.port}/done?token=4711"


def allow(settings: Settings, hosts: dict[str, str]) -> None:
    options = {**settings.DJANGO_JOBS["HTTP"], "callback_hosts": hosts}
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "HTTP": options}


def call_of(job_id: int) -> Job:
    return Job.objects.get(job_type="django_jobs.callback", payload__job_id=job_id)


def settle_next(outcome: Any) -> None:
    (claimed,) = claim_ready(register_worker())
    settle_one(claimed, outcome)


def test_a_client_is_called_once_with_a_signature_by_each_secret(
    client: JsonClient, receiver: Receiver, url: str
) -> None:
    made = client.enqueue(payload={"first": 1}, callback_url=url)
    assert made.status_code == 202
    job_id = made.json()["id"]
    assert call_of(job_id).status == JobStatus.WAITING
    run_jobs(check=True)
    ((headers, body),) = receiver.requests
    assert receiver.received == [
        {
            "type": "job.finished",
            "timestamp": client.get(made["Location"]).json()["finished_at"],
            "data": {
                "id": job_id,
                "job_type": "app.add",
                "status": "succeeded",
                "links": {"self": made["Location"]},
            },
        }
    ]
    assert headers["Content-Type"] == "application/json"
    assert int(headers["webhook-timestamp"]) <= time.time()
    signed = b".".join(
        (headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body)
    )
    signatures = [
        base64.b64encode(
            hmac.new(base64.b64decode(secret[6:]), signed, hashlib.sha256).digest()
        ).decode()
        for secret in (NEW, OLD)
    ]
    assert headers["webhook-signature"] == f"v1,{signatures[0]} v1,{signatures[1]}"
    assert WorkflowRun.objects.get().status == "succeeded"


@pytest.mark.parametrize("status", [500, 404, 302])
def test_a_call_is_repeated_with_its_id_until_it_is_taken(
    client: JsonClient, receiver: Receiver, url: str, status: int
) -> None:
    receiver.first = [status, status]
    client.enqueue(payload={"first": 1}, callback_url=url)
    run_jobs(until=LONG)
    assert len(receiver.requests) == 3  # a redirect would be a GET of /elsewhere
    assert len({headers["webhook-id"] for headers, _ in receiver.requests}) == 1
    errors = Run.objects.filter(error_message__contains=str(status))
    assert errors.count() == 2
    assert not Run.objects.filter(error_message__contains="4711").exists()


def test_a_call_is_given_up_after_all_attempts_and_at_410(
    client: JsonClient, receiver: Receiver, url: str
) -> None:
    receiver.status = 410
    client.enqueue(payload={"first": 1}, callback_url=url)
    run_jobs(until=LONG)
    assert len(receiver.requests) == 1
    receiver.status = 500
    made = client.enqueue(payload={"first": 1}, callback_url=url).json()
    run_jobs(until=LONG)
    assert len(receiver.requests) == 1 + registry.get("django_jobs.callback").max_attempts
    assert call_of(made["id"]).status == JobStatus.DEAD
    receiver.status = 200
    assert replay([call_of(made["id"]).pk], check=lambda job: None).done
    run_jobs()
    assert receiver.received[-1]["data"]["id"] == made["id"]


def test_a_call_waits_for_the_end_of_a_job_that_was_replayed(
    client: JsonClient, receiver: Receiver, url: str
) -> None:
    made = client.enqueue(payload={"first": 1}, callback_url=url).json()
    settle_next(failure("never", final=True))
    assert replay([made["id"]], check=lambda job: None).done
    run_jobs(job_type=registry.get("django_jobs.callback"))
    assert (call_of(made["id"]).status, receiver.requests) == (JobStatus.SCHEDULED, [])
    run_jobs(until=timedelta(hours=1))
    assert [one["data"]["status"] for one in receiver.received] == ["succeeded"]


def test_jobs_that_are_dead_or_cancelled_call_too(
    client: JsonClient, receiver: Receiver, url: str
) -> None:
    client.enqueue(payload={"first": 1}, callback_url=url)
    settle_next(failure("never", final=True))
    cancelled = client.enqueue(payload={"first": 1}, callback_url=url)
    assert client.send(f"{cancelled['Location']}cancel/").status_code == 200
    run_jobs(until=LONG, check=True)
    assert [one["data"]["status"] for one in receiver.received] == ["dead", "cancelled"]


def test_a_call_comes_after_what_the_job_spawned(
    client: JsonClient, url: str, settings: Settings
) -> None:
    def handler() -> None:
        run = current_run()
        assert run is not None
        run.spawn(add, [{"first": 1}, {"first": 2}])

    with declared(handler, name="app.spawning") as parent:
        settings.DJANGO_JOBS["HTTP"]["job_types"] = [parent.name]
        made = client.enqueue(parent.name, callback_url=url).json()
        ran = [run.job_id for run in run_jobs(check=True)]
    assert (len(ran), ran[0], ran[-1]) == (4, made["id"], call_of(made["id"]).pk)


def test_a_key_keeps_its_one_call(client: JsonClient, receiver: Receiver, url: str) -> None:
    asked: dict[str, Any] = {"payload": {"first": 1}, "key": "k"}
    first = client.enqueue(**asked, callback_url=url)
    again = client.enqueue(**asked, callback_url=url)
    assert (again.status_code, again["Location"]) == (202, first["Location"])
    assert client.enqueue(**asked).status_code == 409
    assert client.enqueue(**asked, callback_url=f"{url}2").status_code == 409
    run_jobs(check=True)
    assert client.enqueue(**asked, callback_url=url)["Location"] == first["Location"]
    assert len(receiver.requests) == 1


def test_a_host_that_is_no_longer_allowed_is_not_called(
    client: JsonClient, receiver: Receiver, url: str, settings: Settings
) -> None:
    made = client.enqueue(payload={"first": 1}, callback_url=url)
    allow(settings, {"hooks.example.com": NEW})
    run_jobs(until=LONG)
    call = call_of(made.json()["id"])
    assert (call.status, call.attempt, receiver.requests) == (JobStatus.DEAD, 1, [])
    assert "has a host to which no calls are allowed: 127.0.0.1" in call.last_error


def test_a_job_without_a_call_is_no_step(client: JsonClient, url: str) -> None:
    client.enqueue("app.noop")
    assert Job.objects.get().headers == {}
    assert not WorkflowRun.objects.exists()


@pytest.mark.parametrize(
    "address",
    [
        *(
            None,
            7,
            "",
            "hooks.example.com",
            "ftp://hooks.example.com/",
            "http://hooks.example.com/",
        ),
        *("https://evil.com/", "https://hooks.example.com:8443/", "https://a.hooks.example.com/"),
        *("https://hooks.example.com.evil.com/", "https://evil.com\\@hooks.example.com/"),
        *("https://user@hooks.example.com/", "https://evil.com#.example.org/", "https://.org/"),
        *("https://hooks.example.com/\nx", "https://hooks.example.com/ x", "https://xexample.org/"),
        *(
            "https://hoo\N{KELVIN SIGN}s.example.com/",
            "https://hook\N{LATIN SMALL LETTER LONG S}.example.com/",
        ),
        *("https://hooks.example.com/é", f"https://hooks.example.com/{'x' * 2_000}"),
        *("http://127.0.0.1/", "https://169.254.169.254/", "https://[::1]/", "http://localhost:1/"),
    ],
)
def test_other_addresses_are_refused(client: JsonClient, settings: Settings, address: Any) -> None:
    allow(settings, {"hooks.example.com": NEW, ".example.org": OLD})
    refused = client.enqueue(payload={"first": 1}, callback_url=address)
    assert refused.status_code == 400
    assert "callback_url" in refused.json()["detail"]
    assert not Job.objects.exists()


def test_without_the_setting_no_call_is_allowed(client: JsonClient) -> None:
    refused = client.enqueue("app.noop", callback_url="https://hooks.example.com/")
    assert refused.status_code == 400
    assert "no calls are allowed: hooks.example.com" in refused.json()["detail"]


def test_the_longest_name_of_a_host_that_fits_has_the_secret() -> None:
    hosts = {".example.org": OLD, "a.example.org": NEW, "localhost:8000": NEW, "[::1]:1": NEW}
    assert hosts_problem(hosts) is None
    for address, filler in {
        "https://example.org": 1,
        "https://b.example.org/x?y=z": 1,
        "https://a.example.org?x": 2,
        "http://localhost:8000/": 2,
        "http://[::1]:1/": 2,
        "https://b.example.org:443/x": 1,
        "https://a.example.org:443": 2,
        "HTTPS://A.Example.ORG:443/X": 2,
        "Http://LocalHost:8000/": 2,
    }.items():
        assert secrets_for(address, hosts) == [bytes([filler]) * 32]


def test_a_full_queue_that_drops_the_job_calls_too(
    client: JsonClient, receiver: Receiver, url: str
) -> None:
    Queue.objects.filter(name="default").update(max_backlog=1, on_full="drop_lowest")
    assert client.enqueue("app.noop").status_code == 202
    dropped = client.enqueue("app.noop", callback_url=url).json()
    assert dropped["status"] == "cancelled"
    assert URL in call_of(dropped["id"]).payload["link"]


def test_the_usual_port_names_the_same_server_in_the_setting_too() -> None:
    for named, address in {
        "a.example.org:443": "https://a.example.org/x",
        ".example.org:443": "https://a.example.org:443",
        "[::1]:80": "http://[::1]/",
    }.items():
        assert secrets_for(address, {named: NEW}) == [bytes([2]) * 32], named
    for named, address in {
        "a.example.org:80": "https://a.example.org/",
        "a.example.org:8443": "https://a.example.org:443/",
        "a.example.org": "https://a.example.org:80/",
        "localhost": "http://localhost:443/",
    }.items():
        with pytest.raises(ValueError, match="to which no calls are allowed"):
            secrets_for(address, {named: NEW})
