"""Alerts that workers send: each situation once, with its end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pytest_django import Settings

from django_jobs.doctor import alerting
from django_jobs.doctor.alerts import (
    MOST_TRIES,
    Alerting,
    Message,
    look,
    note,
    of,
    send_test,
    take,
    why_not_sent,
)
from django_jobs.domain.callbacks import HOLD_SECONDS, shown_target
from django_jobs.models import Alert, Resource
from django_jobs.signals import worker_event
from tests.app.jobs import noop
from tests.factories import due_schedule, in_threads, make_dead, run_sql
from tests.receivers import Receiver, mail_server, webhook
from tests.scenes.catalogue import Workflows, move_back, set_up

pytestmark = pytest.mark.django_db

MESSAGES: list[Any] = []


def receive(message: Any) -> None:
    """A function of a project to which alerts are sent."""
    MESSAGES.append(message)


def leave(message: Any) -> None:
    """A function that is left by an exception, which a thread passes over."""
    sys.exit(1)


RECEIVE = f"{__name__}.receive"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with webhook() as receiver:
        yield receiver


def to(receiver: Receiver, **options: Any) -> dict[str, Any]:
    """Rules that send dead jobs to the webhook."""
    url = f"http://127.0.0.1:{receiver.port}/secret"
    return {"ops": {"to": url, "on": ["dead_jobs"], **options}}


def send_all(rules: dict[str, Any]) -> Message | None:
    """Look at numbers of now, and send what waits."""
    forget_numbers()
    return send_found(rules)


def forget_numbers() -> None:
    run_sql("DELETE FROM django_jobs_storedmetrics WHERE id = 1")


def send_found(rules: dict[str, Any]) -> Message | None:
    look(rules, recent=-1)
    message = take("ops", rules["ops"])
    if message is not None:
        message.start()
        message.join()
        note(message)
    return message


def past(seconds: float) -> None:
    """Let all that was noted be so much older."""
    for column in (
        "began_at",
        "send_after",
        "ended_at",
        "begin_sent_at",
        "end_sent_at",
        "tried_at",
    ):
        move = f"{column} = {column} - make_interval(secs => {seconds})"
        run_sql(f"UPDATE django_jobs_alert SET {move}")


def sent(receiver: Receiver) -> list[list[tuple[str, str, bool]]]:
    """Of each message, the situations: name, what it happens to, and whether it is over."""
    return [
        [(one["situation"], one["subject"], bool(one["ended_at"])) for one in body["situations"]]
        for body in receiver.received
    ]


def clear(job: Any) -> None:
    """Let the job have died more than an hour ago."""
    move_back("job", "finished_at", 7_200, f"id = {job.pk}")


def test_a_situation_is_sent_once_and_its_end_once(receiver: Receiver) -> None:
    rules = to(receiver)
    assert send_all(rules) is None
    job = make_dead(noop)
    for _ in range(3):
        send_all(rules)
    assert sent(receiver) == [[("dead_jobs", "default", False)]]
    assert "1 job of the queue 'default' died" in receiver.received[0]["situations"][0]["problem"]
    clear(job)
    for _ in range(3):
        send_all(rules)
    assert sent(receiver)[1:] == [[("dead_jobs", "default", True)]]
    make_dead(noop)
    send_all(rules)
    assert sent(receiver)[2:] == [[("dead_jobs", "default", False)]]


@pytest.mark.django_db(transaction=True)
def test_two_workers_at_once_send_one_message(receiver: Receiver) -> None:
    rules = to(receiver)
    make_dead(noop)
    forget_numbers()  # before the threads: none must lose the row that it reads
    in_threads(4, lambda number: [send_found(rules) for _ in range(2)])
    send_all(rules)
    assert sent(receiver) == [[("dead_jobs", "default", False)]]
    assert Alert.objects.count() == 1


def test_one_worker_of_the_fleet_looks(receiver: Receiver) -> None:
    look(to(receiver))
    make_dead(noop)
    look(to(receiver))
    assert not Alert.objects.exists()


def test_what_is_beyond_the_cap_comes_with_the_next_message(receiver: Receiver) -> None:
    rules = to(receiver, at_most_per_hour=1)
    job = make_dead(noop)
    send_all(rules)
    clear(job)
    make_dead(noop.using(queue="bulk"))
    assert send_all(rules) is None
    past(3_700)
    send_all(rules)
    assert len(sent(receiver)) == 2
    assert set(sent(receiver)[1]) == {("dead_jobs", "default", True), ("dead_jobs", "bulk", False)}


def test_a_message_that_failed_is_sent_again_later_and_not_for_ever(receiver: Receiver) -> None:
    events: list[Any] = []
    listen = lambda sender, **event: events.append((sender, event["fields"]))  # noqa: E731
    worker_event.connect(listen)
    try:
        receiver.status = 503
        rules = to(receiver)
        make_dead(noop)
        assert send_all(rules) is not None
        assert send_all(rules) is None
        past(3_700)
        assert send_all(rules) is not None
        reason = "the webhook answered 503"
        failed = ("alert_failed", {"rule": "ops", "situations": 1, "reason": reason})
        assert [event for event in events if event[0].startswith("alert")] == [failed] * 2
        receiver.status = 200
        past(3_700)
        send_all(rules)
        assert ("alert_sent", {"rule": "ops", "situations": 1}) in events
    finally:
        worker_event.disconnect(listen)
    run_sql(f"UPDATE django_jobs_alert SET begin_sent_at = NULL, attempts = {MOST_TRIES}")
    past(7_200)
    assert send_all(rules) is None


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_was_stopped_notes_nothing_of_a_message_that_was_sent_again(
    receiver: Receiver,
) -> None:
    rules = to(receiver)
    job = make_dead(noop)
    look(rules, recent=-1)
    stopped = take("ops", rules["ops"])
    assert stopped is not None
    stopped.start()
    stopped.join()
    past(130)
    clear(job)
    assert send_all(rules) is not None
    note(stopped)
    assert Alert.objects.get().end_sent_at is not None
    assert send_all(rules) is None
    assert sent(receiver) == [[("dead_jobs", "default", over)] for over in (False, True)]


def test_a_situation_that_did_not_last_is_not_sent(receiver: Receiver) -> None:
    rules = to(receiver, on=["open_breaker"])
    resource = Resource.objects.create(name="stripe", breaker_state="open")
    for seconds, state in ((60, "open"), (30, "closed")):
        Resource.objects.filter(pk=resource.pk).update(breaker_state=state)
        assert send_all(rules) is None
        past(seconds)
    assert Alert.objects.get().ended_at
    Resource.objects.filter(pk=resource.pk).update(breaker_state="half_open")
    for _ in range(2):
        send_all(rules)
        past(HOLD_SECONDS["open_breaker"])
    assert sent(receiver) == [[("open_breaker", "stripe", False)]]


def test_each_situation_is_found_where_other_readers_find_it() -> None:
    set_up()
    run_sql("UPDATE django_jobs_worker SET queues = '[\"default\"]'")
    make_dead(noop)
    noop.using(queue="bulk").enqueue_many([{}] * 19)
    Workflows().compensation_failed()
    Resource.objects.create(name="stripe", breaker_state="open")
    run_sql("UPDATE django_jobs_queue SET slo_seconds = 1, slo_target = 0.5 WHERE name = 'bulk'")
    move_back("job", "available_at", 100, "queue = 'bulk'")
    move_back("worker", "schedules_seen_at", 100)
    move_back("worker", "started_at", 1_000)
    due_schedule(100)
    look({"ops": {"to": RECEIVE}}, recent=-1)
    assert not Alert.objects.filter(situation="burning_objective").exists()  # of so few
    noop.using(queue="bulk").enqueue()
    move_back("job", "available_at", 100, "queue = 'bulk'")
    look({"ops": {"to": RECEIVE}}, recent=-1)
    found = dict(Alert.objects.values_list("situation", "subject"))
    assert found.keys() == HOLD_SECONDS.keys() == set(of({}))
    assert found["unserved_queue"] == found["burning_objective"] == "bulk"


def test_mail_arrives_at_a_mail_server(settings: Settings) -> None:
    make_dead(noop)
    with mail_server() as server:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", server.port
        rules = {"ops": {"to": "mailto:ada@example.com,bob@example.com", "on": ["dead_jobs"]}}
        send_all(rules)
        (mail,) = server.received
        assert "To: ada@example.com, bob@example.com" in mail
        assert "Began: 1 job of the queue" in mail.replace("\r\n ", " ")
        server.status = 550
        assert send_test("ops", rules["ops"]["to"]) == "SMTPSenderRefused"


def test_a_worker_sends_to_a_function(settings: Settings) -> None:
    MESSAGES.clear()
    options = {"to": RECEIVE, "on": ("dead_jobs",)}
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "ALERTS": {"ops": options}}
    make_dead(noop)
    worker = Alerting()
    while worker.run_once():
        pass
    (message,) = MESSAGES
    assert (message["rule"], message["test"], len(message["situations"])) == ("ops", False, 1)
    (task,) = alerting()
    assert not task.has_more(task.run_once())
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "ALERTS": {}}
    assert alerting() == []


def test_a_function_that_exits_has_sent_nothing() -> None:
    rules = {"ops": {"to": f"{__name__}.leave", "on": ["dead_jobs"]}}
    make_dead(noop)
    assert send_all(rules) is not None
    assert Alert.objects.get().begin_sent_at is None
    assert send_test("ops", rules["ops"]["to"]) == "SystemExit"


def test_a_redirect_is_a_failure_and_no_reason_shows_the_address(receiver: Receiver) -> None:
    receiver.status = 302
    url = to(receiver)["ops"]["to"]
    assert send_test("ops", url) == "the webhook answered 302"
    assert len(receiver.received) == 1
    refused = send_test("ops", "http://127.0.0.1:1/secret")
    assert refused == "ConnectionRefusedError: Connection refused"
    assert why_not_sent(ValueError(url)) == "ValueError"
    assert shown_target(url) == "http://127.0.0.1/…"
