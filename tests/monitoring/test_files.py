"""The files of ``docs/monitoring``, the pages about them, and the metrics that there are, agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from django_jobs.domain.callbacks import HOLD_SECONDS
from django_jobs.metrics.slo import FEWEST_RUNS
from tests.test_docs import page

from .promtool import BOARD, RULES, alerts, labels_by_name, needs_promtool, promtool, rules
from .scraping import make_everything, scrape

SELECTOR = re.compile(r"\b(django_jobs_\w+)(?:\{([^}]*)\})?")
WORDS = re.compile(r"\b(?:by|on) \(([^)]*)\)")


def headings(name: str) -> list[str]:
    return re.findall(r"^## (DjangoJobs\w+)$", page(name), re.M)


def test_each_alert_has_a_section_of_the_playbook_and_the_other_way_round() -> None:
    names = [str(alert["alert"]) for alert in alerts()]
    assert headings("playbook.md") == names
    for alert in alerts():
        assert alert["annotations"]["runbook_url"] == f"playbook.html#{alert['alert'].lower()}"


def test_each_section_of_the_playbook_says_where_to_look_and_what_to_do() -> None:
    sections = re.split(r"^## ", page("playbook.md"), flags=re.M)
    for section in sections:
        if section.startswith("DjangoJobs"):
            for word in ("**Look**", "**Do**", "**Do not**"):
                assert section.count(word) == 1, (section, word)


def test_each_alert_is_raised_in_a_test() -> None:
    tests = Path(__file__).with_name("test_alerts.py").read_text()
    assert {alert["alert"] for alert in alerts()} <= set(re.findall(r'"(DjangoJobs\w+)"', tests))


def test_the_page_lists_each_alert_with_its_severity() -> None:
    listed = re.findall(r"^\| \[`(\w+)`\].*? \| (\w+) \|", page("monitoring.md"), re.M)
    assert listed == [(alert["alert"], alert["labels"]["severity"]) for alert in alerts()]


def test_each_summary_names_labels_of_its_alert() -> None:
    for alert in alerts():
        named = set(re.findall(r"\$labels\.(\w+)", alert["annotations"]["summary"]))
        grouped = " ".join(WORDS.findall(expanded(alert["expr"])))
        assert named <= set(re.findall(r"\w+", grouped)), alert


RULE_OF = {
    "dead_jobs": "DjangoJobsDeadGrowth",
    "late_schedule": "DjangoJobsScheduleLate",
    "unserved_queue": "DjangoJobsQueueUnserved",
    "open_breaker": "DjangoJobsBreakerOpen",
    "burning_objective": "DjangoJobsSloBurnFast",
}
"""What ``ALERTS`` sends, but for a failed compensation, of which there is no metric."""


def test_an_alert_without_prometheus_is_sent_when_its_rule_fires() -> None:
    rules = {str(alert["alert"]): alert for alert in alerts()}
    assert RULE_OF.keys() == HOLD_SECONDS.keys() - {"failed_compensation"}
    for situation, name in RULE_OF.items():
        minutes = float(str(rules[name].get("for", "0m")).removesuffix("m"))
        assert HOLD_SECONDS[situation] == 60 * minutes, name
    for name in ("DjangoJobsSloBurnFast", "DjangoJobsSloBurnSlow"):
        assert f" >= {FEWEST_RUNS} unless" in rules[name]["expr"], name


@needs_promtool
def test_promtool_accepts_the_rules() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", str(RULES))


def expanded(expression: str) -> str:
    """With the recorded expressions in the place of their names."""
    for rule in reversed(rules()):
        if "record" in rule:
            expression = expression.replace(rule["record"], rule["expr"])
    return expression


@pytest.mark.django_db(transaction=True)
def test_each_metric_and_label_of_the_files_is_in_a_scrape() -> None:
    make_everything()
    shown = labels_by_name(scrape())
    expressions = [expanded(rule["expr"]) for rule in rules()] + re.findall(
        r'"expr": ("(?:[^"\\]|\\.)*")', BOARD.read_text()
    )
    for expression in expressions:
        used = SELECTOR.findall(expression.replace('\\"', '"'))
        assert used, expression
        for name, matchers in used:
            assert set(re.findall(r"(\w+)=", matchers)) <= shown[name], (name, matchers)
        grouped = {word for words in WORDS.findall(expression) for word in words.split(", ")}
        assert grouped - {""} <= set().union(*(shown[name] for name, _ in used)), expression
