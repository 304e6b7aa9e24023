"""Each field of an address, attacked with markup and SQL; the pages of what is seen, with hostile
rows."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
from django.contrib import admin
from django.db.models.expressions import RawSQL
from django.urls import reverse
from django.utils.http import urlencode

from django_jobs.admin.jobs.job_admin import JobAdmin
from django_jobs.models import Job, Overview, Run, Worker
from tests.app.jobs import noop
from tests.factories import declared, enqueue_and_claim, make_dead, run_sql
from tests.workflows import start_graph

from .schedules.scheduling import new_schedule
from .test_safety import EVIL, anything, evil_rows
from .walking import Live, Page, change_url, list_url

pytestmark = pytest.mark.django_db

HOSTILE = "'\"><script>alert(1)</script><img src=x onerror=alert(1)> OR 1=1 -- %(x)s %s \\"
LONG = HOSTILE * 200
ADMIN = "admin:django_jobs_"
PAGES = {
    "failures": "queue q span retried p",
    "failure_group": "type fingerprint",
    "replay_plan": "error type queue code key tag tenant status schedule created_since",
    "job_enqueue": "job_type",
    "workflowrun_start": "workflow",
    "schedule_add": "job_type name cron every timezone copy",
    "schedule_preview": "cron every timezone dst starts_at_0",
    "schedule_calendar": "from days",
    "worker_deploys": "q",
    "run_cost": "q",
}
"""The pages that are no list, and the fields of their addresses."""
KEEPS_ALL = {"o", "p", "created", "finished", "state", "declared"}
"""The fields of lists that choose no rows if their value is unknown."""


def addresses() -> dict[str, list[str]]:
    """The fields by the name of the page."""
    found = {name: fields.split() for name, fields in PAGES.items()}
    for model, page in admin.site._registry.items():
        if model._meta.app_label == "django_jobs" and model is not Overview:
            fields = [getattr(one, "parameter_name", "") for one in page.list_filter]
            fields += ["q"] if page.search_fields else []
            name = f"{model._meta.model_name}_changelist"
            found[name] = [*fields, "o", "p"] if model is Job else fields
    return {name: fields for name, fields in found.items() if fields}


ADDRESSES = addresses()
SAY_NOTHING = ("run_cost", "worker_doctor", "schedule_calendar")
"""About the rows of the test."""


@pytest.mark.parametrize("name", ADDRESSES)
def test_a_field_of_an_address_is_neither_markup_nor_sql(page: Page, name: str) -> None:
    noop.enqueue()
    make_dead()
    new_schedule()
    start_graph({"a": ""})
    fields, url = ADDRESSES[name], reverse(f"{ADMIN}{name}")
    for given in (*({field: HOSTILE} for field in fields), dict.fromkeys(fields, LONG)):
        answered = page.client.get(url, given)
        assert answered.status_code in (200, 302, 404), given
        text = answered.content.decode()
        if answered["Content-Type"].startswith("text/html"):
            assert Live(text).alarms == [], given
        if "cl" in (answered.context or ()) and not given.keys() <= KEEPS_ALL:
            assert list(answered.context["cl"].result_list) == [], given
        if name == "replay_plan" and answered.status_code == 200:
            assert "No dead job matches" in text


def hostile_links(job: Job) -> Any:
    yield EVIL, "https://wiki.example/?" + EVIL


def test_pages_about_many_rows_show_their_markup_and_do_not_run_it(
    page: Page, settings: Any
) -> None:
    tracker = "https://tracker.example/?title={title}&body={body}"
    settings.DJANGO_JOBS = {
        **settings.DJANGO_JOBS,
        "ISSUE_URL": tracker,
        "LINKS": f"{__name__}.hostile_links",
    }
    evil_rows()
    in_hand = enqueue_and_claim(noop, worker=Worker.objects.latest("pk").pk)
    run_sql("UPDATE django_jobs_job SET job_type = %s, tags = ARRAY[%s]", [EVIL, EVIL])
    place = f'  File "/{EVIL}/{EVIL}.py", line 7, in {EVIL.split()[0]}\n'
    run_sql("UPDATE django_jobs_run SET traceback = %s, error_code = %s", [place, EVIL[:30]])
    dead = Job.objects.filter(status="dead").latest("pk")
    failure = {"type": EVIL, "fingerprint": dead.fingerprint}
    with declared(anything, name=EVIL):
        of_failure = page.text(f"{reverse(f'{ADMIN}failure_group')}?{urlencode(failure)}")
        (form,) = re.findall(r'href="([^"]*quarantine/add/\?[^"]*)"', of_failure)
        urls = [
            *(reverse(f"{ADMIN}{name}") for name in ("failures", "worker_deploys", *SAY_NOTHING)),
            *(list_url(Overview), html.unescape(form), change_url(Worker, in_hand.worker)),
            *(change_url(Job, pk) for pk in (dead.pk, in_hand.id)),
            f"{reverse(f'{ADMIN}replay_plan')}?{urlencode({'type': EVIL})}",
        ]
        texts = {url: page.text(url) for url in urls} | {"failure": of_failure}
    assert {url: found for url, text in texts.items() if (found := Live(text).alarms)} == {}
    without = {url for url, text in texts.items() if "&lt;script&gt;alert(1)" not in text}
    assert without == {reverse(f"{ADMIN}{name}") for name in SAY_NOTHING}
    (tracked,) = re.findall(r'href="(https://tracker[^"]*)"', of_failure)
    assert tracked.startswith("https://tracker.example/?title=%3C%2Fpre")


def test_the_address_of_a_page_that_took_too_long_is_no_markup(
    page: Page, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    noop.enqueue()
    slow = RawSQL("(SELECT pg_sleep(20)::text)", ())
    monkeypatch.setattr(JobAdmin, "annotations", lambda page: {"slow": slow})
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "ADMIN_STATEMENT_TIMEOUT": 0.1}
    answered = page.client.get(list_url(Job), {"queue": "default", "o": HOSTILE})
    assert answered.status_code == 503
    assert Live(answered.content.decode()).alarms == []


def test_the_pages_of_a_large_job_stay_small(page: Page, settings: Any) -> None:
    links = [{"label": "order", "url": "/{payload.order.id}"}]
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "LINKS": links}
    job = make_dead()
    large = json.dumps({"order": {"id": 7}, "text": "x" * 1_000_000})
    run_sql("UPDATE django_jobs_job SET payload = %s, attempt = 40, failures = 40", [large])
    run_sql("UPDATE django_jobs_run SET traceback = repeat('y', 65000)")
    (run,) = Run.objects.values()
    del run["id"]
    Run.objects.bulk_create(Run(**{**run, "attempt": number}) for number in range(2, 41))
    text = page.text(change_url(Job, job.pk))
    assert 'href="/7"' in text
    assert "cut after 100,000 of 1,000," in text
    assert len(text) < 1_000_000
    failure = urlencode({"type": job.job_type, "fingerprint": job.fingerprint})
    assert len(page.text(f"{reverse(f'{ADMIN}failure_group')}?{failure}")) < 200_000
