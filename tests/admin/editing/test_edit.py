"""A job is edited by a form, after a look at what changes."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from django_jobs import chain
from django_jobs.admin.editing.form import JobForm
from django_jobs.api.editing import edit_job
from django_jobs.domain.run_log import MASK
from django_jobs.models import Job
from tests.admin.walking import Live, Page, change_url, message_of
from tests.app.flow_jobs import send_parcel
from tests.app.jobs import add, noop
from tests.factories import declared, enqueue_and_claim, make_dead, run_sql
from tests.lifecycle.test_opening import DEAD, finish

pytestmark = pytest.mark.django_db

ALL = ("view_job", "edit_job", "replay_job", "view_job_payload")
EVIL = '<script>alert(1)</script>"><img src=x onerror=alert(1)>{}'


def edit_url(pk: int) -> str:
    return reverse("admin:django_jobs_job_edit", args=[pk])


def filled(text: str) -> dict[str, str]:
    """What a browser would send of the form on a page, hidden fields included."""
    form = text[text.rindex('<form method="post" novalidate') :].partition("</form>")[0]
    data = {}
    for tag in re.findall(r"<input[^>]*>", form):
        given = dict(re.findall(r'([\w-]+)="([^"]*)"', tag))
        if "name" in given and given["name"] != "csrfmiddlewaretoken":
            data[given["name"]] = html.unescape(given.get("value", ""))
    for name, options in re.findall(r'<select name="([^"]+)"[^>]*>(.*?)</select>', form, re.S):
        chosen = re.search(r'value="([^"]*)" selected', options)
        data[name] = html.unescape(chosen[1]) if chosen else ""
    for name, value in re.findall(r'<textarea name="([^"]+)"[^>]*>\s?(.*?)</textarea>', form, re.S):
        data[name] = html.unescape(value)
    return data


def ask(page: Page, pk: int, **changes: Any) -> str:
    """Fill the form in and send it; the page that answers."""
    data = filled(page.text(edit_url(pk))) | changes
    response = page.client.post(edit_url(pk), data)
    assert response.status_code == 200
    return str(response.content.decode())


def change(page: Page, pk: int, reason: str = "a typo", **changes: Any) -> Any:
    """Fill the form in, look at what changes, and confirm it."""
    question = ask(page, pk, **changes)
    assert 'name="confirmed"' in question, re.findall(r"errorlist.*?</ul>", question, re.S)
    return page.client.post(edit_url(pk), filled(question) | {"reason": reason})


def test_a_dead_job_is_edited_and_replayed(page: Page) -> None:
    dead = make_dead(add, 1, 5)
    assert f'href="{edit_url(dead.pk)}"' in page.text(change_url(Job, dead.pk))
    question = ask(page, dead.pk, argument_first="7")
    assert re.search(r"first</th>\s*<td><del>1</del></td>\s*<td><ins>7</ins>", question)
    assert "second</th>" not in question
    assert Job.objects.get().status == "dead"
    done = change(page, dead.pk, argument_first="7")
    assert message_of(done) == "The job was changed."
    assert done.url == change_url(Job, dead.pk)
    job = Job.objects.get()
    assert (job.status, job.payload) == ("ready", {"first": 7, "second": 5})
    assert job.headers["edits"][0]["by"] == "ada"
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.get_change_message()) == (str(dead.pk), "edited: a typo")


def test_a_step_is_edited_without_what_it_takes_from_another(page: Page) -> None:
    chain(add.step(first=1), send_parcel.step(order_id=7).taking(stock="add")).start()
    finish({"send_parcel": DEAD})
    pk = Job.objects.get(step="send_parcel").pk
    assert "argument_stock" not in filled(page.text(edit_url(pk)))
    assert message_of(change(page, pk, argument_order_id="8")) == "The job was changed."
    job = Job.objects.get(pk=pk)
    assert (job.status, job.payload) == ("ready", {"order_id": 8})


def test_queue_priority_and_due_time_of_a_scheduled_job_are_changed(page: Page) -> None:
    job = add.using(delay=3600).enqueue(1)
    run_sql("UPDATE django_jobs_job SET available_at = '2031-05-06 07:08:09.123456Z'")
    change(page, job.pk, queue="bulk", priority="-7")
    stored = Job.objects.get()
    assert (stored.queue, stored.priority, stored.payload) == ("bulk", -7, {"first": 1})
    assert stored.available_at == datetime(2031, 5, 6, 7, 8, 9, 123456, UTC)
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).date()
    change(page, job.pk, run_at_0=str(tomorrow), run_at_1="10:00:00")
    assert Job.objects.get().available_at.date() in (tomorrow, tomorrow - timedelta(days=1))
    assert [one["changed"] for one in Job.objects.get().headers["edits"]] == [
        ["queue", "priority"],
        ["due"],
    ]


def test_nothing_is_changed_without_a_reason(page: Page) -> None:
    job = add.enqueue(1)
    answer = change(page, job.pk, reason="", argument_first="2")
    assert answer.status_code == 200
    assert "This field is required." in answer.content.decode()
    assert Job.objects.get().payload == {"first": 1}


@pytest.mark.parametrize(
    "changes, problem",
    [
        ({"argument_first": ""}, "This field is required."),
        ({"argument_first": "seven"}, "Enter a whole number."),
        ({"queue": "nowhere"}, "Select a valid choice."),
        ({"priority": "101"}, "less than or equal to 100"),
        ({"run_at_0": "yesterday", "run_at_1": "x"}, "Enter a valid date."),
        (
            {"run_at_0": "9999-12-31", "run_at_1": "23:59:59"},
            "Enter a time within 36,600 days of now.",
        ),
        ({}, "nothing was changed"),
    ],
)
def test_what_is_wrong_is_shown_in_place(page: Page, changes: dict[str, str], problem: str) -> None:
    job = add.enqueue(1)
    text = html.unescape(ask(page, job.pk, **changes))
    assert problem in text
    assert 'name="confirmed"' not in text
    assert Job.objects.get().headers == {}


def test_why_a_job_was_not_changed_is_in_the_language_of_the_page(
    page: Page, settings: Any
) -> None:
    settings.LANGUAGE_CODE = "de"
    job = add.enqueue(1)
    assert "nichts wurde geändert" in ask(page, job.pk)
    question = filled(ask(page, job.pk, argument_first="2"))
    edit_job(job.pk, payload={"first": 3})
    answer = page.client.post(edit_url(job.pk), question | {"reason": "spät"})
    refusal = "Der Job wurde nicht geändert: er wurde inzwischen geändert."
    assert refusal in answer.content.decode()


def test_a_form_that_was_open_during_another_edit_comes_back_and_says_so(page: Page) -> None:
    job = add.enqueue(1)
    opened = filled(page.text(edit_url(job.pk)))
    edit_job(job.pk, priority=50, payload={"first": 99})
    answer = page.client.post(edit_url(job.pk), opened | {"argument_second": "7"})
    assert "The job was not changed: it was changed meanwhile." in answer.content.decode()
    again = filled(answer.content.decode())
    assert (again["argument_second"], again["priority"]) == ("7", "0")
    assert "confirmed" not in again
    question = filled(page.client.post(edit_url(job.pk), again).content.decode())
    page.client.post(edit_url(job.pk), question | {"reason": "mine"})
    stored = Job.objects.get()
    assert (stored.priority, stored.payload) == (0, {"first": 1, "second": 7})


def test_arguments_that_nobody_touched_stay_as_they_are(page: Page) -> None:
    def pay(amount: float, order: str, note: str = "x", at: str | None = None) -> None: ...

    payload = {"amount": 3, "order": 7, "note": "", "at": None}
    with declared(pay) as job_type:
        job = job_type.enqueue(**payload)
        change(page, job.pk, priority="5")
        stored = Job.objects.get()
        assert json.dumps(stored.payload, sort_keys=True) == json.dumps(payload, sort_keys=True)
        assert stored.headers["edits"][0]["changed"] == ["priority"]


def test_a_job_that_is_due_when_clocks_go_back_can_be_edited(page: Page, settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    job = add.using(delay=3600).enqueue(1)
    second = datetime(2031, 10, 26, 1, 30, tzinfo=UTC)
    Job.objects.update(available_at=second)
    change(page, job.pk, priority="7")
    assert Job.objects.get().available_at == second
    change(page, job.pk, run_at_0="2031-10-26", run_at_1="02:45:00")
    assert Job.objects.get().available_at == datetime(2031, 10, 26, 0, 45, tzinfo=UTC)
    never = ask(page, job.pk, run_at_0="2031-03-30", run_at_1="02:45")
    assert "in time zone Europe/Berlin" in never


def test_a_due_time_that_is_stored_and_too_far_away_does_not_prevent_an_edit(page: Page) -> None:
    job = add.using(delay=60).enqueue(1)
    run_sql("UPDATE django_jobs_job SET available_at = '2900-01-01 00:00Z'")
    change(page, job.pk, argument_first="7")
    assert Job.objects.get().payload == {"first": 7}


def test_a_secret_stays_unless_it_is_replaced_and_is_never_shown(page: Page) -> None:
    def pay(token: str, card: dict[str, str], amount: int = 1, **more: str) -> None: ...

    payload = {
        "token": "t-secret",
        "card": {"password": "p-secret"},
        "amount": 1,
        "api_key": "k-secret",
    }
    with declared(pay, name="app.pay_by_card") as job_type:
        job = job_type.enqueue(**payload)
        form = page.text(edit_url(job.pk))
        question = ask(page, job.pk, argument_amount="2")
        assert "secret" not in form + question
        change(page, job.pk, argument_amount="2")
        assert Job.objects.get().payload == payload | {"amount": 2}
        replaced = ask(page, job.pk, argument_token="t-new")
        assert re.search(rf"token</th>\s*<td><del>\"{MASK}\"</del></td>", html.unescape(replaced))
        change(page, job.pk, argument_token="t-new")
        assert Job.objects.get().payload == payload | {"amount": 2, "token": "t-new"}


@pytest.mark.parametrize(
    "field, typed",
    [
        ("argument_token", MASK),
        ("argument_card", f'{{"password": "{MASK}"}}'),
        ("argument_card", '{"password": "\\u2022\\u2022\\u2022\\u2022\\u2022\\u2022"}'),
        ("more_arguments", f'{{"api_key": "{MASK}"}}'),
    ],
)
def test_a_mask_that_is_sent_back_overwrites_no_secret(page: Page, field: str, typed: str) -> None:
    def pay(token: str, card: dict[str, str], **more: str) -> None: ...

    with declared(pay, name="app.pay_by_card") as job_type:
        job = job_type.enqueue(token="t-secret", card={"password": "p"}, api_key="k")
        assert "This is the mask of a secret." in ask(page, job.pk, **{field: typed})
        assert Job.objects.get().payload == {
            "token": "t-secret",
            "card": {"password": "p"},
            "api_key": "k",
        }


def test_without_the_payload_permission_the_arguments_are_hidden_and_stay(
    page_of: Callable[..., Page],
) -> None:
    job = add.enqueue(7781)
    page = page_of("view_job", "edit_job")
    text = page.text(edit_url(job.pk))
    assert "argument_first" not in text
    assert "7781" not in text
    change(page, job.pk, priority="3", argument_first="2", payload='{"first": 2}')
    stored = Job.objects.get()
    assert (stored.priority, stored.payload) == (3, {"first": 7781})


@pytest.mark.parametrize("left_out", ["view_job", "edit_job", "replay_job"])
def test_the_view_needs_its_permissions(page_of: Callable[..., Page], left_out: str) -> None:
    dead = make_dead(add, 1)
    page = page_of(*set(ALL) - {left_out})
    assert page.client.get(edit_url(dead.pk)).status_code == 403
    sent = {"argument_first": "2", "queue": "default", "priority": "0", "confirmed": "1"}
    assert page.client.post(edit_url(dead.pk), sent).status_code == 403
    assert Job.objects.get().status == "dead"
    if left_out != "view_job":
        assert edit_url(dead.pk) not in page.text(change_url(Job, dead.pk))


def test_an_edit_of_a_job_that_changed_meanwhile_is_refused(page: Page) -> None:
    job = add.enqueue(1)
    question = filled(ask(page, job.pk, argument_first="2"))
    edit_job(job.pk, payload={"first": 3})
    answer = page.client.post(edit_url(job.pk), question | {"reason": "late"})
    assert answer.status_code == 200
    again = filled(answer.content.decode())
    assert "The job was not changed: it was changed meanwhile." in answer.content.decode()
    assert Job.objects.get().payload == {"first": 3}
    assert (again["argument_first"], "confirmed" in again) == ("2", False)
    asked = page.client.post(edit_url(job.pk), again).content.decode()
    assert re.search(r"first</th>\s*<td><del>3</del></td>\s*<td><ins>2</ins>", asked)
    assert filled(asked)["reason"] == "late"
    run_sql("UPDATE django_jobs_job SET status = 'cancelled', finished_at = now()")
    answer = page.client.post(edit_url(job.pk), question | {"reason": "late"})
    assert answer.status_code == 404
    assert LogEntry.objects.count() == 0


def test_a_job_that_runs_is_not_edited(page: Page) -> None:
    held = enqueue_and_claim(add, 1)
    assert edit_url(held.id) not in page.text(change_url(Job, held.id))
    answer = page.client.post(edit_url(held.id), {"argument_first": "2", "confirmed": "1"})
    assert message_of(answer) == "The job is running and cannot be edited."
    assert Job.objects.get().payload == {"first": 1}


@pytest.mark.parametrize("pk", [10**15, 10**25])
def test_a_job_that_is_not_there_is_not_found(page: Page, pk: int) -> None:
    assert page.client.get(edit_url(pk)).status_code == 404


def test_the_type_the_status_and_other_columns_cannot_be_sent(page: Page) -> None:
    job = add.using(idempotency_key="k").enqueue(1)
    forged = {
        "job_type": "app.noop",
        "status": "succeeded",
        "attempt": "9",
        "rank": "-1",
        "idempotency_key": "other",
        "actor": "ada",
        "by": "eve",
        "state": "x" * 32,
    }
    asked = {name: value for name, value in forged.items() if name != "state"}
    question = filled(ask(page, job.pk, argument_first="2", **asked))
    assert question.keys().isdisjoint(asked)
    page.client.post(
        edit_url(job.pk), question | forged | {"state": question["state"], "reason": "r"}
    )
    stored = Job.objects.get()
    assert (stored.job_type, stored.status, stored.attempt, stored.idempotency_key) == (
        "app.add",
        "ready",
        0,
        "k",
    )
    assert stored.payload == {"first": 2}
    assert stored.headers["edits"][0]["by"] == "ada"


def test_markup_in_a_payload_and_in_the_reason_is_shown_and_not_run(page: Page) -> None:
    def note(text: str, **more: str) -> None: ...

    with declared(note, name="app.note_down") as job_type:
        job = job_type.enqueue(EVIL, **{EVIL: EVIL})
        assert not Live(page.text(edit_url(job.pk))).alarms
        question = ask(page, job.pk, argument_text=EVIL + "\n" + EVIL)
        assert not Live(question).alarms
        assert "&lt;script&gt;" in question
        change(page, job.pk, reason=EVIL, argument_text="calm")
        assert Job.objects.get().payload == {"text": "calm", EVIL: EVIL}
        assert not Live(page.text(change_url(Job, job.pk))).alarms
        assert not Live(page.text(reverse("admin:django_jobs_job_history", args=[job.pk]))).alarms


def test_a_payload_that_cannot_be_read_is_entered_again(page: Page) -> None:
    job = add.enqueue(1)
    run_sql("UPDATE django_jobs_job SET payload = %s", ['{"first": ' + "9" * 5001 + "}"])
    assert "The current handler cannot read the stored arguments." in page.text(edit_url(job.pk))
    change(page, job.pk, argument_first="2")
    assert Job.objects.get().payload == {"first": 2}


def test_a_job_type_without_arguments_has_the_other_fields(page: Page) -> None:
    job = noop.enqueue()
    change(page, job.pk, priority="4")
    assert Job.objects.get().priority == 4


@pytest.mark.parametrize("stored", [["a", 1], {"a": None}, []])
def test_a_list_where_another_type_is_declared_is_shown_as_json(page: Page, stored: Any) -> None:
    def takes(text: str, number: int = 0) -> None: ...

    with declared(takes, name="app.takes") as job_type:
        job = job_type.using(delay=3600).enqueue(stored, stored)  # type: ignore[arg-type]
        form = JobForm(job_type, stored=job.payload)
        assert json.loads(form["argument_text"].value()) == stored
        change(page, job.pk, argument_text='["b"]')
        assert Job.objects.get().payload == {"text": ["b"], "number": stored}
