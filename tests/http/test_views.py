"""A client enqueues, asks, cancels and lists; what it may not, and what it sends wrong."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.db import transaction
from django.http import HttpRequest, HttpResponseForbidden
from pytest_django import Settings
from pytest_django.live_server_helper import LiveServer

from django_jobs.domain.outcomes import Succeeded
from django_jobs.domain.payload import is_reference
from django_jobs.lifecycle import progress
from django_jobs.models import Job, Queue
from django_jobs.testing import run_jobs
from tests.app.jobs import add, noop, write_effect
from tests.factories import (
    analyze,
    claim_ready,
    declared,
    explain,
    failure,
    make_user,
    register_worker,
    run_sql,
    settle_one,
)
from tests.http.conftest import PERMISSIONS, URL, JsonClient

pytestmark = [pytest.mark.django_db, pytest.mark.urls("tests.app.http_urls")]


def ask(client: Any, job_id: Any) -> Any:
    return client.get(f"{URL}{job_id}/")


def test_a_client_enqueues_and_follows_its_job_to_the_end(client: JsonClient) -> None:
    made = client.enqueue(payload={"first": 1}, tags=["vip"])
    assert (made.status_code, made["Idempotency-Replayed"]) == (202, "false")
    assert made["Location"] == f"{URL}{made.json()['id']}/" == made.json()["links"]["self"]
    stored = Job.objects.get()
    assert (stored.job_type, stored.payload, stored.tags) == ("app.add", {"first": 1}, ["vip"])

    (claimed,) = claim_ready(register_worker())
    progress.report([progress.ProgressReport(job=claimed, fraction=0.5, note="half")])
    running = client.get(made["Location"]).json()
    assert (running["status"], running["attempt"], running["result"]) == ("running", 1, None)
    assert running["progress"] == {"fraction": 0.5, "note": "half"}

    settle_one(claimed, Succeeded(result='{"sum": 2, "api_token": "4711"}'))
    ended = client.get(made["Location"]).json()
    assert (ended["status"], ended["error"], ended["tags"]) == ("succeeded", None, ["vip"])
    assert ended["result"] == {"sum": 2, "api_token": "••••••"}
    assert ended["finished_at"] > ended["created_at"]


def test_an_error_is_short_and_without_secrets(client: JsonClient) -> None:
    made = add.enqueue(1)
    (claimed,) = claim_ready(register_worker())
    settle_one(claimed, failure("password=4711 " + "x" * 1000))
    error = ask(client, made.pk).json()["error"]
    assert error.startswith("ValueError: password=••••••")
    assert len(error) <= 300


def test_a_key_returns_the_same_job_also_when_it_has_ended(client: JsonClient) -> None:
    first = client.enqueue(payload={"first": 1}, key="k")
    (claimed,) = claim_ready(register_worker())
    settle_one(claimed, Succeeded(result="2"))
    again = client.enqueue(payload={"first": 1}, key="k")
    assert again.status_code == 202
    assert (again["Location"], again["Idempotency-Replayed"]) == (first["Location"], "true")
    assert again.json()["status"] == "succeeded"
    assert client.enqueue(payload={"first": 2}, key="k").status_code == 409
    assert client.enqueue("app.noop", key="k").status_code == 409
    assert client.enqueue(payload={"first": 1}, key="k" * 201).status_code == 422
    Job.objects.all().delete()
    assert client.enqueue(payload={"first": 1}, key="k").status_code == 409
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("first", "other"),
    [(1, True), (0, False), ([1], [True]), ({"a": 0}, {"a": False}), (None, False), ("1", 1)],
)
def test_a_key_belongs_to_the_payload_as_json_has_it(
    client: JsonClient, first: Any, other: Any
) -> None:
    made = client.enqueue(payload={"first": first}, key="k")
    assert client.enqueue(payload={"first": other}, key="k").status_code == 409
    for again in (first, float(first) if type(first) is int else first):
        assert client.enqueue(payload={"first": again}, key="k")["Location"] == made["Location"]


def answer(value: Any) -> Any:
    return value


@pytest.fixture
def _answering(client: JsonClient, settings: Settings) -> Iterator[None]:
    allowed = {"job_types": ["app.add", "answer"]}
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "HTTP": allowed}
    with declared(answer, name="answer"):
        yield


@pytest.fixture
def _small_rows(_answering: None, settings: Settings, tmp_path: Path) -> None:
    settings.MEDIA_ROOT = str(tmp_path)
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "STORAGE": {"above_bytes": 1_000}}


@pytest.mark.usefixtures("_small_rows")
def test_what_is_stored_as_a_file_because_of_its_size_is_as_any_other(client: JsonClient) -> None:
    large = {"text": "x" * 2_000, "password": "4711"}
    made = client.enqueue(payload={"first": large, "second": ["y" * 2_000]}, key="k")
    assert is_reference(Job.objects.get().payload["first"])
    again = client.enqueue(payload={"first": large, "second": ["y" * 2_000]}, key="k")
    assert (again["Location"], again["Idempotency-Replayed"]) == (made["Location"], "true")
    assert client.enqueue(payload={"first": large, "second": []}, key="k").status_code == 409

    returned = client.enqueue("answer", payload={"value": large})
    run_jobs(job_type="answer", check=True)
    assert is_reference(Job.objects.get(job_type="answer").result)
    result = client.get(returned["Location"]).json()["result"]
    assert result == {**large, "password": "••••••"}


@pytest.mark.usefixtures("_small_rows")
@pytest.mark.parametrize(
    ("error", "status"), [(FileNotFoundError, 410), (OSError, 503), (RuntimeError, 503)]
)
def test_a_file_that_the_storage_does_not_give_is_an_answer_with_the_reason(
    client: JsonClient,
    error: type[Exception],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    value = {"value": "x" * 2_000}
    made = client.enqueue("answer", payload=value, key="k")
    run_jobs(job_type="answer", check=True)

    def fail(*args: Any) -> None:
        raise error("bucket-4711")

    monkeypatch.setattr("django.core.files.storage.FileSystemStorage._open", fail)
    caplog.set_level("INFO", "django_jobs")
    for response in (
        client.get(made["Location"]),
        client.enqueue("answer", payload=value, key="k"),
    ):
        assert response.status_code == status
        assert response["Content-Type"] == "application/problem+json"
        assert "A large value of this job" in response.json()["detail"]
        assert "4711" not in response.text
        assert ("Retry-After" in response) is (status == 503)
    assert caplog.text.count("event=http_refused") == 2
    assert "bucket-4711" in caplog.text or status == 410


@pytest.mark.usefixtures("_small_rows")
def test_a_client_may_name_the_file_of_another_job_twice(client: JsonClient) -> None:
    client.enqueue(payload={"first": "x" * 2_000})
    reference = Job.objects.get().payload["first"]
    for replayed in ("false", "true"):
        again = client.enqueue(payload={"first": "x" * 2_000, "second": reference}, key="k")
        assert (again.status_code, again.get("Idempotency-Replayed")) == (202, replayed)


@pytest.mark.usefixtures("_answering")
def test_a_reference_is_a_dict_as_any_other_without_a_storage(client: JsonClient) -> None:
    value = {"$stored": "django_jobs/x", "size": 5}
    made = client.enqueue("answer", payload={"value": value}, key="k")
    assert client.enqueue("answer", payload={"value": value}, key="k").status_code == 202
    run_jobs(check=True)
    assert client.get(made["Location"]).json()["result"] == value


@pytest.mark.parametrize(
    ("key", "end"),
    [
        ("args", "did you mean 'payload'? known are: job_type, payload, tags, callback_url."),
        ("kwargs", "did you mean 'payload'? known are: job_type, payload, tags, callback_url."),
        ("tag", "did you mean 'tags'? known are: job_type, payload, tags, callback_url."),
        ("queue", "known are: job_type, payload, tags, callback_url."),
    ],
)
def test_an_unknown_key_is_refused_with_those_that_there_are(
    client: JsonClient, key: str, end: str
) -> None:
    problem = client.enqueue(**{key: []})
    assert problem.status_code == 400
    assert problem.json()["detail"] == f"The body has the unknown key '{key}'; {end}"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("{", 400),
        ("[]", 400),
        ('{"job_type": 1}', 400),
        ('{"job_type": "app.add", "payload": {"first": NaN}}', 400),
        (f'{{"job_type": "app.add", "payload": {"[" * 100_000}', 400),
        ({"job_type": "app.add", "payload": [1]}, 400),
        ({"job_type": "app.add", "tags": "vip"}, 400),
        ({"job_type": "app.add", "queue": "emails"}, 400),
        ({"job_type": "app.add", "\ud800": 1}, 400),
        ({"job_type": "app.add", "payload": {}}, 422),
        ({"job_type": "app.add", "payload": {"first": "\x00"}}, 422),
        ({"job_type": "app.add", "payload": {"first": 1}, "tags": [1]}, 422),
        ({"job_type": "app.add", "payload": {"first": 1}, "tags": [" "]}, 422),
        ({"job_type": "app.write_effect", "payload": {"note": ""}}, 403),
        ({"job_type": "app.unknown"}, 403),
    ],
)
def test_a_wrong_body_is_a_problem_and_no_job(client: JsonClient, body: Any, status: int) -> None:
    refused = client.send(URL, body)
    assert refused.status_code == status
    assert refused["Content-Type"] == "application/problem+json"
    assert refused.json()["status"] == status
    assert not Job.objects.exists()


def test_an_unknown_type_is_refused_as_one_that_is_not_allowed(client: JsonClient) -> None:
    refused = {client.enqueue(name).content for name in ("app.write_effect", "app.unknown")}
    assert len(refused) == 1


def test_another_type_of_content_and_a_large_body_are_refused(
    client: JsonClient, settings: Settings
) -> None:
    headers = {"x-csrftoken": client.cookies["csrftoken"].value}
    assert client.post(URL, {"job_type": "app.noop"}, headers=headers).status_code == 415
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    assert client.enqueue(payload={"first": "x" * 100}).status_code == 413


@pytest.mark.parametrize(
    ("method", "url", "allow"),
    [
        ("put", URL, "GET, HEAD, POST"),
        ("delete", f"{URL}1/", "GET, HEAD"),
        ("get", f"{URL}1/cancel/", "POST"),
    ],
)
def test_other_methods_are_refused(client: JsonClient, method: str, url: str, allow: str) -> None:
    refused = getattr(client, method)(url)
    assert (refused.status_code, refused["Allow"]) == (405, allow)


def test_a_full_queue_says_when_to_come_again(client: JsonClient) -> None:
    Queue.objects.filter(name="default").update(max_backlog=1)
    assert client.enqueue("app.noop").status_code == 202
    refused = client.enqueue("app.noop")
    assert refused.status_code == 429
    assert int(refused["Retry-After"]) > 0


def test_the_projects_own_mistake_is_no_fault_of_the_client(client: JsonClient) -> None:
    Queue.objects.filter(name="default").delete()
    client.raise_request_exception = False
    assert client.enqueue("app.noop").status_code == 500


@pytest.mark.django_db(transaction=True)
def test_a_job_is_enqueued_in_the_transaction_of_the_request(
    client: JsonClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside: list[bool] = []

    def note(*args: Any) -> bool:
        inside.append(transaction.get_connection().in_atomic_block)
        return True

    monkeypatch.setattr("django_jobs.http.views.may", note)
    connection = transaction.get_connection()
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    assert client.enqueue("app.noop").status_code == 202
    assert inside == [True]


def test_a_job_is_cancelled_and_a_running_one_asked(client: JsonClient) -> None:
    waiting, running = noop.using(priority=-1).enqueue(), add.enqueue(1)
    claim_ready(register_worker(), limit=1)
    cancelled = client.send(f"{URL}{waiting.pk}/cancel/")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    assert Job.objects.get(pk=waiting.pk).reason == "cancelled by olga"
    for _ in range(2):
        asked = client.send(f"{URL}{running.pk}/cancel/")
        assert (asked.status_code, asked.json()["status"]) == (202, "running")
    ended = client.send(f"{URL}{waiting.pk}/cancel/")
    assert (ended.status_code, ended.json()["detail"]) == (409, "The job has ended: cancelled.")


def test_other_jobs_are_not_there(client: JsonClient) -> None:
    other = write_effect.enqueue("secret")
    for job_id in (other.pk, other.pk + 1, 2**63, 10**30, -1, "x"):
        assert ask(client, job_id)["Content-Type"] == "application/problem+json"
        assert ask(client, job_id).status_code == 404
        assert client.send(f"{URL}{job_id}/cancel/").status_code == 404
    assert Job.objects.get().status == "ready"


def test_jobs_are_listed_by_their_tag(client: JsonClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_jobs.http.views.PAGE", 2)
    made = [add.using(tags=["a b", "c"]).enqueue(1).pk for _ in range(3)]
    noop.using(tags="d").enqueue()
    write_effect.using(tags="c").enqueue("")
    page = client.get(URL, {"tag": "a b"}).json()
    assert [one["id"] for one in page["jobs"]] == made[:0:-1]
    page = client.get(page["next"]).json()
    assert ([one["id"] for one in page["jobs"]], page["next"]) == (made[:1], None)
    assert len(client.get(URL, {"tag": "c", "before": str(2**63 - 1)}).json()["jobs"]) == 2


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"tag": ""},
        {"tag": "\x00"},
        {"tag": "a", "before": "x"},
        {"tag": "a", "before": "9" * 19},
        {"tags": "a"},
        {"tag": "a", "status": "dead"},
        {"tag": "a", "limit": "5"},
        {"tag": ["a", "b"]},
    ],
)
def test_a_list_needs_a_tag_a_whole_cursor_and_nothing_else(client: JsonClient, query: Any) -> None:
    assert client.get(URL, query).status_code == 400


@pytest.mark.usefixtures("fresh_tables")
def test_a_list_reads_the_index_of_tags() -> None:
    fill = """
    INSERT INTO django_jobs_job (queue, job_type, payload_version, payload, status, rank, priority,
        available_at, max_attempts, max_crashes, headers, created_at, tags)
    SELECT 'default', 'app.noop', 1, '{}', 'ready', n, 0, now(), 5, 3, '{}', now(),
        ARRAY['t' || n / 10] FROM generate_series(1, 20000) AS n
    """
    run_sql(fill)
    analyze()
    rows = Job.objects.listed_by_tag("t7").filter(job_type__in=["app.noop"]).order_by("-pk")[:100]
    assert len(rows) == 10
    for query in (rows.query, Job.objects.tagged("t7").query):
        nodes = explain(*query.sql_with_params())
        assert not [
            node
            for node in nodes
            if node["Node Type"] == "Seq Scan" and node["Relation Name"] == "django_jobs_job_live"
        ]


@pytest.mark.parametrize(
    ("missing", "statuses"),
    [
        ("enqueue_job", (403, 200, 200, 200)),
        ("view_job", (202, 403, 404, 404)),
        ("cancel_job", (202, 200, 200, 403)),
    ],
)
def test_each_action_needs_its_permission(
    client: JsonClient, missing: str, statuses: tuple[int, ...]
) -> None:
    made = noop.enqueue()
    client.login_as(make_user(*{*PERMISSIONS} - {missing}, name="other"))
    answers = (
        client.enqueue("app.noop"),
        client.get(URL, {"tag": "a"}),
        ask(client, made.pk),
        client.send(f"{URL}{made.pk}/cancel/"),
    )
    assert tuple(one.status_code for one in answers) == statuses


def test_results_and_errors_need_their_permissions(client: JsonClient) -> None:
    good, bad = add.enqueue(1), noop.enqueue()
    for claimed in claim_ready(register_worker()):
        ended = Succeeded(result="2") if claimed.id == good.pk else failure("details")
        settle_one(claimed, ended)
    assert ask(client, good.pk).json()["result"] == 2
    assert ask(client, bad.pk).json()["error"] == "ValueError: details"
    client.login_as(make_user("view_job", name="other"))
    assert ask(client, good.pk).json()["result"] is None
    assert ask(client, bad.pk).json()["error"] is None


def only_noop(user: Any) -> dict[str, list[str]]:
    return {"job_types": ["app.noop"]}


def test_a_user_with_a_scope_acts_inside_of_it(client: JsonClient, settings: Settings) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "ADMIN_SCOPE": f"{__name__}.only_noop"}
    inside, outside = noop.using(tags="a").enqueue(), add.using(tags="a").enqueue(1)
    assert client.enqueue("app.noop").status_code == 202
    assert client.enqueue(payload={"first": 1}).status_code == 403
    assert ask(client, outside.pk).status_code == 404
    assert [one["id"] for one in client.get(URL, {"tag": "a"}).json()["jobs"]] == [inside.pk]


def test_a_session_needs_its_csrf_token(client: JsonClient) -> None:
    made = noop.enqueue()
    del client.cookies["csrftoken"]
    for url in (URL, f"{URL}{made.pk}/cancel/"):
        refused = client.post(url, {"job_type": "app.noop"}, content_type="application/json")
        assert (refused.status_code, "CSRF" in refused.json()["detail"]) == (403, True)
    client.login_as(make_user(*PERMISSIONS, name="other"))
    client.logout()
    assert client.get(URL, {"tag": "a"}).status_code == 403


def by_token(request: HttpRequest, action: str, job_type: str, made: Job | None) -> bool:
    """Each token has its tenant, and cancels nothing."""
    token = request.headers.get("Authorization", "")
    return bool(token) and action != "cancel" and (made is None or made.tenant in (None, token))


def test_a_function_of_the_project_decides_instead(client: JsonClient, settings: Settings) -> None:
    settings.DJANGO_JOBS = {
        **settings.DJANGO_JOBS,
        "HTTP": {"job_types": ["app.noop"], "authorize": f"{__name__}.by_token"},
    }
    mine = noop.using(tenant="acme", tags="a").enqueue()
    other = noop.using(tenant="hooli", tags="a", idempotency_key="k").enqueue()
    assert client.enqueue("app.noop").status_code == 403
    client = JsonClient()  # without a session or a CSRF token
    client.defaults["HTTP_AUTHORIZATION"] = "acme"
    assert client.enqueue("app.noop").status_code == 202
    assert ask(client, mine.pk).status_code == 200
    assert ask(client, other.pk).status_code == 404
    assert [one["id"] for one in client.get(URL, {"tag": "a"}).json()["jobs"]] == [mine.pk]
    assert client.enqueue("app.noop", key="k").status_code == 409  # the job is not mine
    assert client.send(f"{URL}{mine.pk}/cancel/").status_code == 403


async def of_async() -> bool:
    return False


def coroutine() -> Any:
    """What an async function returns to a caller that does not await."""
    made = of_async()
    made.close()
    return made


ANSWERS = {
    "response": lambda: HttpResponseForbidden(),
    "text": lambda: "no",
    "number": lambda: 1,
    "job": lambda: noop,
    "coroutine": coroutine,
    "nothing": lambda: None,
    "empty": lambda: "",
    "false": lambda: False,
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_only_true_authorizes(client: JsonClient, settings: Settings, kind: str) -> None:
    made = noop.enqueue()
    rule = {"authorize": f"{__name__}.answers_{kind}"}
    answer = ANSWERS[kind]
    globals()[f"answers_{kind}"] = lambda *about: answer()
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "HTTP": {"job_types": ["app.noop"], **rule}}
    for call in (lambda: client.enqueue("app.noop"), lambda: ask(client, made.pk)):
        if kind in ("nothing", "empty", "false"):
            assert call().status_code in (403, 404)
        else:
            with pytest.raises(TypeError, match=r"answers_\w+\(\) returns True or False, not "):
                call()
    assert Job.objects.get() == made


def test_refusals_are_logged(client: JsonClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "django_jobs")
    client.enqueue("app.unknown\nevent=job_dead")
    (line,) = [one.getMessage() for one in caplog.records if one.name == "django_jobs"]
    assert line.startswith("event=http_refused status=403 method=POST reason=")


@pytest.mark.django_db(transaction=True)
def test_a_real_client_is_served(client: JsonClient, live_server: LiveServer) -> None:
    with httpx.Client() as session:
        session.cookies.update({name: one.value for name, one in client.cookies.items()})
        session.headers["X-CSRFToken"] = client.cookies["csrftoken"].value
        body = {"job_type": "app.add", "payload": {"first": 1}, "tags": ["vip"]}
        made = session.post(f"{live_server.url}{URL}", json=body)
        assert made.status_code == 202
        url = f"{live_server.url}{made.headers['Location']}"
        assert session.get(url).json()["status"] == "ready"
        assert session.post(f"{url}cancel/").json()["status"] == "cancelled"
        assert session.post(f"{url}cancel/").status_code == 409
        listed = session.get(f"{live_server.url}{URL}", params={"tag": "vip"}).json()
        assert [one["status"] for one in listed["jobs"]] == ["cancelled"]
        session.headers.pop("X-CSRFToken")
        assert session.post(f"{live_server.url}{URL}", json=body).status_code == 403
