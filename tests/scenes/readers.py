"""What each of the six readers says of the rows that are there, in a form to compare.

Times, ids and what else differs from one run of a test to the next are ``…``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

from django.contrib import admin
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.test import RequestFactory
from prometheus_client.parser import text_string_to_metric_families

from django_jobs.admin.base.formatting import Visible
from django_jobs.admin.overview.numbers import read_numbers
from django_jobs.admin.overview.problems import problems
from django_jobs.doctor.examination import EXAMINATIONS, diagnose
from django_jobs.models import Job
from django_jobs.why.evaluation import explain
from django_jobs.why.explanation import plain
from tests.admin.overview.looking import words
from tests.factories import run_sql
from tests.monitoring.promtool import RULES, notation, promtool
from tests.monitoring.scraping import stored

Samples = dict[str, float]

CLOCK = r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d(?::\d\d)?(?: UTC)?"
LENGTH = r"\d[\d,.]*\s(?:ms|s|min|h|days?|weeks?)\b"
VARYING = re.compile(
    rf"{LENGTH}(?:\s{LENGTH})*|{CLOCK}(?: \([^)]+\))?|(?<=#)\d+"
    r"|(?<=\b[Jj]ob )\d+|(?<=\b[Jj]obs )\d+|(?<=[ew] run )\d+|(?<=first is )\d+"
)
AGES = {3_600: "> 1 h", 300: "> 5 min", 60: "> 1 min", 0: "< 1 min"}
"""Ages of a scrape, by the thresholds of the rules. A machine that stands still moves none."""

SELECTORS = re.findall(r'\b(django_jobs_\w+)(?:{(\w+)=~?"([^"]+)"})?', RULES.read_text())
"""The metrics that the alert rules read, with the label and its values that they ask for."""

WORK = [one for one in EXAMINATIONS if min(one.numbers, default="") >= "D3"]
"""Not those of the server and its tables."""


def constant(text: str) -> str:
    """The text without what varies."""
    return VARYING.sub("…", text.replace("\N{NO-BREAK SPACE}", " "))


def read_why(job: Job | None) -> Iterator[str]:
    """The gates that hold the job, and the sentence."""
    if job is not None:
        explanation = explain(Job.objects.get(pk=job.pk))
        gates = ", ".join(gate.name for gate in explanation.gates if gate.holds)
        yield f"{gates or '-'}: {constant(plain(explanation.sentence))}"


def read_doctor() -> list[str]:
    """The findings about jobs and schedules: number and problem."""
    diagnosis = diagnose(WORK)
    assert not diagnosis.not_examined
    return [
        f"{finding.id.removeprefix('django_jobs.')} {constant(finding.problem)}"
        for finding in diagnosis.findings
    ]


def read_overview() -> list[str]:
    """The problems of the first page of the admin, as a superuser sees them. Stores the numbers
    that :func:`read_samples` shows."""
    run_sql("DELETE FROM django_jobs_storedmetrics")
    request = RequestFactory().get("/")
    request.user = get_user_model()(is_superuser=True, is_active=True, is_staff=True)
    found = problems(read_numbers(), Visible(admin.site, request))
    texts = [re.sub(r" (?=[:,.)])|(?<=\() ", "", words(problem.text)) for problem in found]
    return [f"{one.state}: {constant(text)}" for one, text in zip(found, texts, strict=True)]


def read_status() -> Iterator[str]:
    """What ``jobstatus --check`` fails with."""
    try:
        call_command("jobstatus", "--check", stdout=StringIO())
    except CommandError as error:
        yield constant(str(error))


def read_samples() -> Samples:
    """The samples of ``/metrics`` that the alert rules read."""
    return {
        notation(sample.name, sample.labels): sample.value
        for family in text_string_to_metric_families(stored())
        for sample in family.samples
        if any(
            sample.name == name and (not label or sample.labels[label] in values.split("|"))
            for name, label, values in SELECTORS
        )
    }


ZERO_IS_SOME = re.compile("quarantined_jobs|queue_slots|schedule")
"""Of other metrics a new series of 0 is as none."""


def shown(name: str, value: float) -> str:
    """A value, or of an age about how much."""
    if not re.search(r"_(age|lag)_seconds", name):
        return f"{value:g}"
    return next(text for least, text in AGES.items() if max(value, 0) >= least)


def short(name: str) -> str:
    """``jobs{default,ready}``: the values of the labels, in the order of their names."""
    metric, _, labels = name.removeprefix("django_jobs_").partition("{")
    values = ",".join(filter(None, re.findall(r'"([^"]*)"', labels)))
    return f"{metric}{{{values}}}" if values else metric


def differing(before: Samples, after: Samples) -> list[str]:
    """The samples that are not as before. Three or more of one metric that are alike, or that are
    gone, are one."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in sorted(before.keys() | after.keys()):
        was, now = (shown(name, one[name]) if name in one else "gone" for one in (before, after))
        if was != now and ((was, now) != ("gone", "0") or ZERO_IS_SOME.search(name)):
            metric = "" if now == "gone" else short(name.partition("{")[0])
            found.setdefault((metric, now), []).append(short(name))
    line = "; ".join(
        f"{text} {value}"
        for (metric, value), names in found.items()
        for text in (names if len(names) < 3 else [f"{metric}{{{len(names)} series}}"])
    )
    return [line] if line else []


def read(job: Job | None, before: Samples) -> tuple[list[str], Samples]:
    """What all but the alert rules say, a line for each thing, and the samples of the scrape."""
    said: dict[str, Iterable[str]] = {
        "why": read_why(job),
        "doctor": read_doctor(),
        "overview": read_overview(),
    }
    samples = read_samples()
    said |= {"status": read_status(), "metrics": differing(before, samples)}
    return [f"{reader} {text}" for reader, texts in said.items() for text in texts], samples


FIRING = 'group by (alertname) (ALERTS{alertstate="firing", alertname!="of %s"})'
"""promtool prints it where others fire, with the name of the scene."""
MINUTES, EVERY = 60, 30
"""The longest ``for:`` is an hour. Rarer evaluations say the same, and take a third of the CPU."""


def assert_firing(scenes: Mapping[str, tuple[Samples, str]]) -> None:
    """If the scrapes of each scene stay as they are, these alerts fire, and no others. One process
    looks at all of them."""
    tests = []
    for name, (samples, alerts) in scenes.items():
        series = [{"series": one, "values": f"{value!r}x3"} for one, value in samples.items()]
        labels = [notation("", {"alertname": alert}) for alert in alerts.split()]
        firing = [{"labels": one, "value": 1} for one in labels]
        test = {"expr": FIRING % name, "eval_time": f"{MINUTES}m", "exp_samples": firing}
        tests.append({"interval": f"{EVERY}m", "input_series": series, "promql_expr_test": [test]})
    whole = {"rule_files": [str(RULES)], "evaluation_interval": f"{EVERY}m", "tests": tests}
    with TemporaryDirectory() as directory:
        file = Path(directory) / "scenes.yml"
        file.write_text(json.dumps(whole))  # JSON is YAML
        promtool("test", "rules", str(file))
