"""The names that filters offer are read from small tables and from the heads of the queues."""

from __future__ import annotations

import pytest
from django.test import RequestFactory

from django_jobs.admin.lists.choices import MOST_NAMES, NAMES, NAMES_IN_SCOPE, choices_of
from django_jobs.models import Job, JobStatus
from tests.app.jobs import noop
from tests.factories import analyze, copies_of, explain, fold_runs, make_dead, run_sql

pytestmark = pytest.mark.django_db


def test_names_are_read_once_for_a_request(django_assert_num_queries: object) -> None:
    request = RequestFactory().get("/")
    with django_assert_num_queries(1):  # type: ignore[operator]
        assert ("emails", "emails") in choices_of(request, "queue")
        assert choices_of(request, "tenant") == []


def test_a_type_that_has_run_is_offered_when_its_jobs_are_gone() -> None:
    make_dead()
    run_sql("UPDATE django_jobs_job SET job_type = 'crm.gone'")
    fold_runs()
    run_sql("DELETE FROM django_jobs_job")
    assert ("crm.gone", "crm.gone") in choices_of(RequestFactory().get("/"), "job_type")


@pytest.mark.usefixtures("fresh_tables")
def test_only_the_heads_of_the_queues_are_read() -> None:
    copies_of(noop.enqueue(), 4_000)
    copies_of(Job.objects.get(pk=noop.using(delay=900).enqueue().pk), 1_000, JobStatus.SCHEDULED)
    analyze("django_jobs_job")
    for sql, queues in ((NAMES, None), (NAMES_IN_SCOPE, None), (NAMES_IN_SCOPE, ["default"])):
        nodes = explain(sql, {"most": MOST_NAMES, "queues": queues})
        of_jobs = [node for node in nodes if "django_jobs_job" in node.get("Relation Name", "")]
        assert {node.get("Index Name") for node in of_jobs} == {"django_jobs_ready"}
        assert all(node["Actual Rows"] <= 100 for node in of_jobs)
