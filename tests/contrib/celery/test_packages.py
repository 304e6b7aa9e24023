"""Packages that nobody here wrote, whose Celery tasks are run without a broker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import django
import pytest

pytest.importorskip("celery")

from django.core import mail
from django.core.mail.backends import locmem
from django.db import connection

from django_jobs import registry
from django_jobs.contrib.celery.running.job_types import job_type_of
from django_jobs.models import Job, Resource
from tests.contrib.celery.project import tasks
from tests.contrib.celery.running import run_all
from tests.factories import run_sql
from tests.patience import PATIENCE
from tests.worker.processes import JobWorker, until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("project")]


@pytest.mark.skipif(
    django.VERSION >= (6, 0), reason="it reads EmailMessage.mixed_subtype: gone in Django 6.0"
)
class TestCeleryEmail:
    """django-celery-email: an e-mail backend whose task has a queue, a rate and retries."""

    @pytest.fixture(autouse=True)
    def _configured(self, settings: Any) -> Any:
        pytest.importorskip("appconf")
        settings.CELERY_EMAIL_TASK_CONFIG = {"queue": "emails", "rate_limit": "6000/m"}
        settings.CELERY_EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
        pytest.importorskip("djcelery_email.backends")
        settings.EMAIL_BACKEND = "djcelery_email.backends.CeleryEmailBackend"
        settings.CELERY_EMAIL_CHUNK_SIZE = 10
        settings.CELERY_EMAIL_MESSAGE_EXTRA_ATTRIBUTES = None
        task = tasks.add.app.tasks["djcelery_email_send_multiple"]
        task.rate_limit = "6000/m"
        yield
        # The flush behind the test sends post_migrate, which would leave its resource to the next.
        task.rate_limit = None
        registry.unregister("djcelery_email_send_multiple")

    def test_mail_is_sent_by_a_job(self) -> None:
        mail.send_mail("Hello", "It works", "a@example.com", ["b@example.com"])
        job = Job.objects.get()
        assert (job.job_type, job.queue) == ("djcelery_email_send_multiple", "emails")
        assert Resource.objects.get(name=job.job_type).rate == 6000
        assert not mail.outbox
        run_all()
        assert [message.subject for message in mail.outbox] == ["Hello"]

    def test_of_a_chunk_only_what_failed_is_sent_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sends, refused = locmem.EmailBackend.send_messages, {"2", "4"}

        def send(self: Any, messages: Any) -> Any:
            if messages[0].subject in refused:
                refused.discard(messages[0].subject)
                raise ConnectionError("no answer")
            return sends(self, messages)

        monkeypatch.setattr(locmem.EmailBackend, "send_messages", send)
        messages = [
            mail.EmailMessage(str(number), "", "a@example.com", ["b@example.com"])
            for number in range(5)
        ]
        mail.get_connection().send_messages(messages)
        run_all()
        assert [message.subject for message in mail.outbox] == ["0", "1", "3", "2", "4"]
        assert [job.status for job in Job.objects.order_by("pk")] == ["succeeded"] * 3
        assert Job.objects.order_by("pk")[1].headers["celery"]["retries"] == 1


def test_a_task_that_sentry_traces_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    sentry_sdk = pytest.importorskip("sentry_sdk")
    from celery import Task
    from sentry_sdk.integrations.celery import CeleryIntegration
    from sentry_sdk.transport import Transport

    class Nowhere(Transport):
        def capture_envelope(self, envelope: Any) -> None: ...

    monkeypatch.setattr(Task, "apply_async", Task.apply_async)  # Sentry replaces it
    with sentry_sdk.isolation_scope() as scope:
        client = sentry_sdk.Client(
            dsn="https://key@sentry.invalid/1",
            transport=Nowhere,
            integrations=[CeleryIntegration()],
            traces_sample_rate=1.0,
            default_integrations=False,
            auto_enabling_integrations=False,
        )
        scope.set_client(client)
        result = tasks.fetch.delay("http://x", failures=2)
        run_all()
        client.close()
    assert "sentry-task-enqueued-time" in Job.objects.get().headers
    assert result.get(timeout=PATIENCE) == ["http://x", 2]
    # Sentry has put another body on the task, in this process and maybe in no other one.
    declared = job_type_of(tasks.fetch.app, tasks.fetch.name)
    assert [*declared.signature.parameters] == ["url", "failures"]


@pytest.mark.processes
def test_post_office_sends_its_mail_by_a_worker(
    start_worker: Callable[..., JobWorker],
) -> None:
    if find_spec("post_office") is None:
        pytest.skip("django-post-office is not installed")
    settings = "tests.contrib.celery.project.mail_settings"

    def in_the_project(*arguments: str) -> None:
        environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": settings,
            "TEST_DATABASE_NAME": connection.settings_dict["NAME"],
        }
        command = [sys.executable, "-W", "ignore", *arguments]
        subprocess.run(command, env=environment, check=True, timeout=PATIENCE, capture_output=True)

    in_the_project("-m", "django", "migrate", "--skip-checks", "post_office")
    try:
        in_the_project("-c", SEND)
        mail = Job.objects.get()
        assert mail.job_type == "post_office.tasks.send_queued_mail"
        # It also fires the demo's schedules, which `migrate` has written.
        start_worker(DJANGO_SETTINGS_MODULE=settings, PYTHONWARNINGS="ignore")
        until(lambda: Job.objects.get(pk=mail.pk).status == "succeeded")
        assert run_sql("SELECT status, subject FROM post_office_email") == [(0, "Hello")]
    finally:
        run_sql(DROP)


DROP = """
DROP TABLE IF EXISTS post_office_attachment_emails, post_office_attachment, post_office_log,
    post_office_email, post_office_emailtemplate, post_office_recipientdeliverystatus CASCADE;
DELETE FROM django_migrations WHERE app = 'post_office';
"""
SEND = """
import django
django.setup()
from post_office import mail
mail.send(["b@example.com"], "a@example.com", subject="Hello", message="It works")
"""
