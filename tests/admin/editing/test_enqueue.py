"""A job is enqueued by hand, of the types that allow it."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.core.exceptions import PermissionDenied
from django.urls import reverse
from pytest_django import Settings

from django_jobs import JobType, OperationRefused, registry
from django_jobs.api.editing import enqueue_by_hand
from django_jobs.models import Job
from tests.admin.editing.test_edit import filled
from tests.admin.walking import Live, Page, change_url, list_url, message_of
from tests.factories import declared, make_user, run_sql

pytestmark = pytest.mark.django_db

EVIL = '<script>alert(1)</script>"><img src=x onerror=alert(1)>{}'
MAY = ("view_job", "enqueue_job")


@pytest.fixture(autouse=True)
def _greet() -> Iterator[None]:
    def greet(name: str, times: int = 1, token: str = "") -> None:
        """Greets somebody.

        Not shown.
        """

    with declared(greet, name="app.welcome_guest", schedulable=True, queue="bulk", priority=2):
        yield


def some_types(user: Any) -> dict[str, list[str]] | None:
    types = ["app.noop", "app.welcome_guest"]
    return None if user.is_superuser else {"job_types": types}


def enqueue_url(name: str | None = None) -> str:
    url = reverse("admin:django_jobs_job_enqueue")
    return f"{url}?job_type={name}" if name else url


def send(page: Page, name: str = "app.welcome_guest", **fields: str) -> Any:
    return page.client.post(enqueue_url(name), fields)


def test_from_the_list_to_the_job(page_of: Callable[..., Page]) -> None:
    page = page_of(*MAY)
    assert f'href="{enqueue_url()}"' in page.text(list_url(Job))
    choice = page.read(enqueue_url())
    assert f'href="{enqueue_url("app.welcome_guest")}"' in choice
    assert "Greets somebody." in choice
    assert f'href="{enqueue_url("app.add")}"' not in choice
    assert 'name="argument_name"' in page.text(enqueue_url("app.welcome_guest"))
    done = send(page, argument_name="Ada")
    job = Job.objects.get()
    assert done.url == change_url(Job, job.pk)
    assert message_of(done) == "The job was enqueued."
    assert (job.job_type, job.payload, job.queue, job.priority, job.status) == (
        "app.welcome_guest",
        {"name": "Ada"},
        "bulk",
        2,
        "ready",
    )
    assert LogEntry.objects.get().object_id == str(job.pk)


def test_the_options_of_a_job(page: Page) -> None:
    send(
        page,
        argument_name="Ada",
        argument_times="3",
        queue="default",
        priority="-5",
        run_at_0="2099-01-02",
        run_at_1="03:04:05",
        idempotency_key="k",
    )
    job = Job.objects.get()
    assert (job.payload, job.queue, job.priority) == ({"name": "Ada", "times": 3}, "default", -5)
    assert (job.status, job.idempotency_key) == ("scheduled", "k")
    assert job.available_at.year == 2099


def test_a_key_that_is_held_leads_to_the_job_that_holds_it(page: Page) -> None:
    send(page, argument_name="Ada", idempotency_key="k")
    again = send(page, argument_name="Bob", idempotency_key="k")
    assert again.url == change_url(Job, Job.objects.get().pk)
    assert "No other was enqueued" in message_of(again)
    assert LogEntry.objects.count() == 1


def test_a_form_that_is_sent_twice_makes_one_job(page: Page) -> None:
    forms = [page.text(enqueue_url("app.welcome_guest")) for _ in range(2)]
    one, other = (re.findall(r'name="form_number" value="(\w{32})"', form)[0] for form in forms)
    assert one != other
    first = send(page, argument_name="Ada", form_number=one)
    run_sql("UPDATE django_jobs_job SET status = 'succeeded', finished_at = now()")
    again = send(page, argument_name="Ada", form_number=one)
    assert (again.url, Job.objects.count()) == (first.url, 1)
    assert "This form was sent twice. It made one job." in message_of(again)
    send(page, argument_name="Bob", form_number=one)
    send(page, argument_name="Ada", form_number=other)
    for _ in range(2):
        send(page, argument_name="Ada")
    assert Job.objects.count() == LogEntry.objects.count() == 5


@pytest.mark.parametrize(
    "fields, problem",
    [
        ({}, "This field is required."),
        ({"argument_name": "Ada", "argument_times": "many"}, "Enter a whole number."),
        ({"argument_name": "Ada", "priority": "-101"}, "greater than or equal to -100"),
        ({"argument_name": "Ada", "queue": "nowhere"}, "Select a valid choice."),
        ({"argument_name": "x" * 1_100_000}, "larger than 1,048,576 bytes"),
        ({"argument_name": "Ada", "idempotency_key": "x" * 201}, "at most 200 characters"),
        (
            {"argument_name": "Ada", "run_at_0": "9999-12-31", "run_at_1": "00:00"},
            "Enter a time within 36,600 days of now.",
        ),
        ({"argument_name": "a\0b"}, "Null characters are not allowed."),
    ],
)
def test_what_is_wrong_is_shown_in_place_and_nothing_is_enqueued(
    page: Page, fields: dict[str, str], problem: str
) -> None:
    answer = send(page, **fields)
    assert answer.status_code == 200
    assert problem in html.unescape(answer.content.decode())
    assert not Job.objects.exists()


@pytest.mark.parametrize("name", ["app.add", "app.gone", "os.system", "%00"])
def test_another_job_type_is_not_found(page: Page, name: str) -> None:
    assert page.client.get(enqueue_url(name)).status_code == 404
    assert page.client.post(enqueue_url(name), {"argument_first": "1"}).status_code == 404
    assert not Job.objects.exists()


@pytest.mark.parametrize("permissions", [(), ("view_job",), ("view_job", "add_job", "edit_job")])
def test_without_the_permission_nothing_is_offered_and_nothing_enqueued(
    page_of: Callable[..., Page], permissions: tuple[str, ...]
) -> None:
    page = page_of(*permissions)
    for url in (enqueue_url(), enqueue_url("app.welcome_guest")):
        assert page.client.get(url).status_code == 403
    assert send(page, argument_name="Ada").status_code == 403
    assert not Job.objects.exists()
    if "view_job" in permissions:
        assert enqueue_url() not in page.text(list_url(Job))


def test_the_permission_and_the_type_are_checked_again_below_the_admin() -> None:
    with pytest.raises(PermissionDenied, match="enqueue_job"):
        enqueue_by_hand("app.welcome_guest", {"name": "Ada"}, actor=make_user("view_job"))
    with pytest.raises(OperationRefused, match="schedulable"):
        enqueue_by_hand("app.add", {"first": 1}, actor=make_user("enqueue_job", name="eve"))
    assert not Job.objects.exists()


def test_markup_is_shown_and_not_run(page: Page) -> None:
    answer = send(page, argument_name=EVIL, argument_times=EVIL, idempotency_key=EVIL)
    assert not Live(answer.content.decode()).alarms
    send(page, argument_name=EVIL, idempotency_key=EVIL)
    assert not Live(page.text(change_url(Job, Job.objects.get().pk))).alarms


def test_without_such_a_type_the_page_says_so(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_jobs.registry.names", list)
    assert re.search("No job type is declared with.*schedulable=True", page.text(enqueue_url()))


def left_out(page: Page) -> str:
    return page.text(enqueue_url()).partition("<details")[2].partition("</details>")[0]


def test_the_choice_names_the_job_types_that_do_not_allow_it(page: Page) -> None:
    text = left_out(page)
    count = sum(not registry.get(name).schedulable for name in registry.names())
    reason = "they are not declared with <code>schedulable=True</code>."
    assert f"{count} other job types are not offered: {reason}" in text
    assert "<li>app.add</li>" in text
    assert "app.welcome_guest" not in text


def test_a_user_with_a_scope_sees_why_and_no_names_outside_of_it(
    page: Page, page_of: Callable[..., Page], settings: Settings
) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "ADMIN_SCOPE": f"{__name__}.some_types"}
    limited = "Your account is limited to some queues and job types."
    olga = page_of(*MAY)
    assert limited in olga.read(enqueue_url())
    text = left_out(olga)
    assert "1 other job type is not offered: it is not declared" in text
    assert re.findall(r"<li>(.*?)</li>", text) == ["app.noop"]
    assert limited not in page.read(enqueue_url())


def test_a_secret_is_not_sent_back_with_the_errors_of_the_form(page: Page) -> None:
    text = page.text(enqueue_url("app.welcome_guest"))
    assert re.search(r'<input type="password" name="argument_token"', text)
    again = send(page, argument_token="s3cret", argument_times="many", argument_name="Ada")
    text = again.content.decode()
    assert "Enter a whole number." in text
    assert 'value="Ada"' in text
    assert "s3cret" not in text
    send(page, argument_token="s3cret", argument_name="Ada")
    assert Job.objects.get().payload["token"] == "s3cret"


SEES = (*MAY, "view_job_payload")


def welcome(**options: Any) -> JobType[..., Any]:
    return registry.get("app.welcome_guest").using(**options)


def like_of(page: Page, job: Job) -> str:
    """The address behind the button on the page of ``job``."""
    found = re.search(r'href="([^"]+)">Enqueue another like it', page.text(change_url(Job, job.pk)))
    return html.unescape(found[1]) if found else ""


@pytest.mark.parametrize("status", ["ready", "succeeded", "dead"])
def test_another_like_a_job_of_any_state(page_of: Callable[..., Page], status: str) -> None:
    page = page_of(*SEES)
    job = welcome(queue="default", priority=7, tags=["vip"], idempotency_key="k").enqueue(
        name="Ada", times=3
    )
    run_sql(f"UPDATE django_jobs_job SET status = '{status}', finished_at = now()")
    url = like_of(page, job)
    assert f"request of #{job.pk} named: tags vip." in page.read(url)
    form = filled(page.text(url))
    assert (form["argument_name"], form["argument_times"]) == ("Ada", "3")
    assert (form["queue"], form["priority"], form["idempotency_key"]) == ("default", "7", "")
    page.client.post(url, form | {"argument_name": "Bob"})
    made = Job.objects.get(payload__name="Bob")
    assert (made.payload, made.queue, made.priority, made.tags, made.idempotency_key[:5]) == (
        {"name": "Bob", "times": 3},
        "default",
        7,
        ["vip"],
        "form-",
    )


def test_another_like_it_has_no_secret(page: Page) -> None:
    job = welcome().enqueue(name="Ada", token="t-secret")
    url = like_of(page, job)
    text = page.read(url)
    assert "t-secret" not in text
    assert f"Secrets of #{job.pk} are not filled in: token." in text
    page.client.post(url, filled(page.text(url)))
    assert Job.objects.latest("pk").payload == {"name": "Ada"}


def test_who_may_not_see_the_arguments_gets_none(page_of: Callable[..., Page]) -> None:
    page, job = page_of(*MAY), welcome(priority=9).enqueue(name="Adalbert")
    url = like_of(page, job)
    text = page.read(url)
    assert "Adalbert" not in text
    assert f"You may not see the arguments of #{job.pk}. They are not filled in." in text
    assert filled(page.text(url))["priority"] == "9"
    assert page.client.post(url, filled(page.text(url))).status_code == 200
    page.client.post(url, {"argument_name": "Bob"})
    assert Job.objects.latest("pk").payload == {"name": "Bob"}


def test_another_is_offered_for_types_and_users_that_may(page_of: Callable[..., Page]) -> None:
    assert not like_of(page_of(*SEES), registry.get("app.add").enqueue(1))
    eve = page_of("view_job", "view_job_payload", name="eve")
    assert not like_of(eve, welcome().enqueue(name="Ada"))


@pytest.mark.parametrize("like", ["1", "x", "9" * 30, "%00", "-1"])
def test_without_the_job_the_form_is_empty(page_of: Callable[..., Page], like: str) -> None:
    other = registry.get("app.add").enqueue(1)
    like = str(other.pk) if like == "1" else like
    url = f"{enqueue_url('app.welcome_guest')}&like={like}"
    page = page_of(*SEES)
    assert "The job to copy does not exist. Nothing is filled in." in page.read(url)
    unseen = page_of("enqueue_job", "view_job_payload", name="eve")
    url = f"{enqueue_url('app.welcome_guest')}&like={welcome().enqueue(name='Ada').pk}"
    assert "The job to copy does not exist." in unseen.read(url)


def test_an_unreadable_payload_is_not_filled_in(page: Page) -> None:
    job = welcome().enqueue(name="Ada")
    run_sql("UPDATE django_jobs_job SET payload = '[1]'")
    assert f"The arguments of #{job.pk} cannot be read." in page.read(like_of(page, job))


def test_gates_that_the_request_named_are_kept(page: Page) -> None:
    job = welcome(tenant="acme", concurrency_key="one").enqueue(name="Ada")
    url = like_of(page, job)
    page.client.post(url, filled(page.text(url)))
    made = Job.objects.latest("pk")
    assert (made.tenant, made.concurrency_key) == ("acme", "one")


COPIES = (*SEES, "edit_job")


def test_a_job_of_any_type_is_copied_by_those_who_may_edit_it(page_of: Callable[..., Page]) -> None:
    job = registry.get("app.add").enqueue(1, 2)
    run_sql("UPDATE django_jobs_job SET status = 'succeeded', finished_at = now()")
    url = f"{enqueue_url('app.add')}&like={job.pk}"
    for number, missing in enumerate(COPIES):
        page = page_of(*(one for one in COPIES if one != missing), name=f"lacks{number}")
        assert page.client.post(url, {"argument_first": "1"}).status_code in (403, 404)
        assert missing == "view_job" or "like=" not in page.text(change_url(Job, job.pk))
    page = page_of(*COPIES)
    assert html.escape(url) in page.text(change_url(Job, job.pk))
    page.client.post(url, filled(page.text(url)))
    made = Job.objects.latest("pk")
    assert (made.job_type, made.payload, made.status) == ("app.add", job.payload, "ready")
    assert Job.objects.count() == 2
    for other in ("app.noop", "app.gone"):
        assert page.client.get(f"{enqueue_url(other)}&like={job.pk}").status_code == 404
    assert page.client.get(enqueue_url("app.add")).status_code == 404


def test_who_may_copy_a_job_is_checked_again_below_the_admin() -> None:
    job = registry.get("app.add").enqueue(1, 2)
    other = registry.get("app.noop").enqueue()
    ada = make_user("enqueue_job", "edit_job", "view_job_payload")
    for like in (None, other.pk, 2**62):
        with pytest.raises(OperationRefused, match="schedulable"):
            enqueue_by_hand("app.add", {"first": 3}, actor=ada, like=like)
    for name in ("edit_job", "view_job_payload"):
        eve = make_user("enqueue_job", name, name=f"only_{name}")
        with pytest.raises(PermissionDenied):
            enqueue_by_hand("app.add", {"first": 3}, actor=eve, like=job.pk)
    assert enqueue_by_hand("app.add", {"first": 3}, actor=ada, like=job.pk).payload == {"first": 3}
    assert Job.objects.count() == 3
