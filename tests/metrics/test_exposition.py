"""The text that Prometheus scrapes."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_open
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse
from pytest_django import Settings

from django_jobs.domain.outcomes import Succeeded
from django_jobs.metrics import exposition
from django_jobs.metrics.exposition import FAMILIES, JobsCollector, render
from django_jobs.metrics.gauges import read_gauges
from django_jobs.models import Queue, Tenant
from tests.app.jobs import noop
from tests.factories import enqueue_and_claim, fold_runs, run_sql, settle_one
from tests.patience import PATIENCE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md"
ROW = re.compile(r"^\| `(django_jobs_\w+)` \| (\w+) \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", re.M)


@pytest.mark.django_db
def test_prometheus_text_is_the_default() -> None:
    noop.enqueue()
    content_type, text = render()
    assert content_type.startswith("text/plain; version=0.0.4")
    jobs = next(one for one in parse(text.decode()) if one.name == "django_jobs_jobs")
    labels = {"queue": "default", "state": "ready"}
    assert [one.value for one in jobs.samples if one.labels == labels] == [1]


@pytest.mark.django_db
def test_numbers_that_older_code_stored_have_no_samples_of_what_is_new() -> None:
    render()
    run_sql(
        "UPDATE django_jobs_storedmetrics SET taken_at = now(), values = jsonb_set(values::jsonb,"
        " '{queues}', (SELECT jsonb_agg(one - 'drain_seconds' - 'paused') FROM"
        " jsonb_array_elements(values::jsonb -> 'queues') AS one))"
    )
    _, text = render()
    assert b"django_jobs_queue_keeps_successes{" in text
    assert b"django_jobs_queue_paused{" not in text


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("own", "kept"), [(None, 0), ({"dead": None}, 0), ({"succeeded": None}, 1)]
)
def test_a_queue_that_keeps_successes_for_ever_says_so(
    settings: Settings, own: Any, kept: int
) -> None:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "RETENTION": {"succeeded": 0}}
    Queue.objects.filter(name="default").update(retention=own)
    _, text = render()
    assert f'django_jobs_queue_keeps_successes{{queue="default"}} {kept:.1f}' in text.decode()


@pytest.mark.django_db
def test_openmetrics_is_sent_to_those_who_accept_it() -> None:
    content_type, text = render("application/openmetrics-text; version=1.0.0, text/plain;q=0.5")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert text.endswith(b"# EOF\n")
    names = {family.name for family in parse_open(text.decode())}
    assert names == {family.name.removesuffix("_total") for family in FAMILIES}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("accept", "generate", "read"),
    [("", generate_latest, parse), ("application/openmetrics-text", generate_open, parse_open)],
)
def test_the_page_has_what_prometheus_client_writes_of_the_collector(
    accept: str, generate: Any, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Tenant.objects.create(name='a "b"\\\n{%s}', weight=0.5, max_concurrency=20_000_000)
    settle_one(enqueue_and_claim(noop), Succeeded())
    fold_runs()
    gauges = read_gauges()
    monkeypatch.setattr(exposition, "read_gauges", lambda: gauges)
    registry = CollectorRegistry()
    registry.register(JobsCollector())
    families = list(read(render(accept)[1].decode()))
    assert families == list(read(generate(registry).decode()))
    assert len(families) == len(FAMILIES)
    kinds = {family.type for family in families if family.samples}
    assert kinds == {"gauge", "counter", "histogram"}


@pytest.mark.django_db
def test_a_projects_own_registry_can_have_the_collector() -> None:
    noop.enqueue()
    registry = CollectorRegistry()
    registry.register(JobsCollector())
    labels = {"queue": "default", "state": "ready"}
    assert registry.get_sample_value("django_jobs_jobs", labels) == 1
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(JobsCollector())


@pytest.mark.django_db
def test_a_database_that_fails_leaves_the_other_metrics_of_a_registry(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = CollectorRegistry()
    registry.register(JobsCollector())
    Counter("orders", "Orders of the shop.", registry=registry).inc()
    run_sql("DROP TABLE django_jobs_storedmetrics")
    with caplog.at_level(logging.WARNING, "django_jobs"):
        text = generate_latest(registry).decode()
    assert "orders_total 1.0" in text
    assert not re.search("^django_jobs_", text, re.MULTILINE)
    assert "event=database_error" in caplog.text


def test_the_page_describes_each_metric() -> None:
    described = {
        name: (kind, tuple(re.findall(r"`(\w+)`", labels)), meaning)
        for name, kind, labels, meaning in ROW.findall(PAGE.read_text())
    }
    assert described == {
        family.name: (family.kind, family.labels, family.help.removesuffix("."))
        for family in FAMILIES
    }


@pytest.fixture
def _no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """``import prometheus_client`` raises ImportError."""
    monkeypatch.setitem(sys.modules, "prometheus_client", None)


@pytest.mark.usefixtures("_no_client")
def test_without_prometheus_client_the_error_names_the_extra() -> None:
    with pytest.raises(ImproperlyConfigured, match=re.escape("django-jobs-postgres[metrics]")):
        render()


def test_the_urls_and_the_app_load_without_prometheus_client() -> None:
    program = (
        "import sys, django; sys.modules['prometheus_client'] = None\n"
        "from django.conf import settings\n"
        "settings.configure(INSTALLED_APPS=['django.contrib.auth',"
        " 'django.contrib.contenttypes', 'django_jobs'],"
        " DATABASES={'default': {'ENGINE': 'django.db.backends.postgresql'}})\n"
        "django.setup(); import django_jobs.metrics.urls, django_jobs.metrics.exposition"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)
