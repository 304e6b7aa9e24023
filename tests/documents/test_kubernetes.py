"""The manifests of the page about Kubernetes, and of compose: what they say is run."""

from __future__ import annotations

import re
import subprocess
import sys
import uuid
from typing import Any

import pytest
import yaml

from django_jobs.lifecycle.operations.jobs import pause, resume
from django_jobs.metrics.exposition import render
from tests.app.jobs import noop
from tests.documents.blocks import blocks_of
from tests.factories import (
    analyze,
    claim_ready,
    enqueue_and_claim,
    explain,
    register_worker,
    run_sql,
)
from tests.lifecycle.test_plans import fill
from tests.monitoring.promtool import Phase, assert_values, needs_promtool
from tests.worker.processes import Start
from tests.worker.test_health import port_of, until_answer


def files(page: str) -> dict[str, Any]:
    """The YAML of a page, by the file that the first line of its block names."""
    found = [block.body for block in blocks_of(page) if block.language == "yaml"]
    return {body.split()[1]: yaml.safe_load(body) for body in found}


PAGE = files("docs/kubernetes.md")
POD = PAGE["jobs.yaml"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
SCALED = PAGE["autoscaling.yaml"]["spec"]
(TRIGGER,) = SCALED["triggers"]
QUERY = TRIGGER["metadata"]["query"]
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def changed(command: list[str]) -> list[str]:
    """The arguments of ``jobworker``, with a free port."""
    arguments = command[command.index("jobworker") + 1 :]
    arguments[arguments.index("--health-port") + 1] = "0"
    return [*arguments, "--health-host", "127.0.0.1"]  # the last one counts


@pytest.mark.processes
def test_the_container_of_the_deployment_answers_its_probes(start_worker: Start) -> None:
    worker = start_worker(*changed(CONTAINER["command"]))
    port = port_of(worker)
    for probe in PROBES:
        until_answer(port, CONTAINER[probe]["httpGet"]["path"], 200)
    (named,) = CONTAINER["ports"]
    assert {CONTAINER[probe]["httpGet"]["port"] for probe in PROBES} == {named["name"]}
    assert str(named["containerPort"]) == option(CONTAINER["command"], "--health-port")


def test_the_pod_has_the_time_that_a_drain_takes() -> None:
    drain = float(option(CONTAINER["command"], "--drain-timeout"))
    assert POD["terminationGracePeriodSeconds"] >= drain + 5
    assert "lifecycle" not in CONTAINER  # a preStop hook would take of that time


def test_a_probe_waits_for_what_the_supervisor_repairs() -> None:
    """It kills a heartbeat process that hangs for 18 s, which are 9 after the first failure."""
    probe = CONTAINER["livenessProbe"]
    assert probe["periodSeconds"] * (probe["failureThreshold"] - 1) > 18 - 9


def test_both_autoscalers_scale_the_deployment() -> None:
    deployment, hpa = PAGE["jobs.yaml"], PAGE["hpa.yaml"]
    assert SCALED["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert hpa["spec"]["scaleTargetRef"] == {
        **{key: deployment[key] for key in ("apiVersion", "kind")},
        "name": deployment["metadata"]["name"],
    }
    assert (
        deployment["spec"]["selector"]["matchLabels"]
        == (deployment["spec"]["template"]["metadata"]["labels"])
    )


def test_the_query_counts_enough_for_the_most_pods() -> None:
    most = SCALED["maxReplicaCount"] * int(TRIGGER["metadata"]["targetQueryValue"])
    (limit,) = {int(number) for number in re.findall(r"LIMIT (\d+)", QUERY)}
    assert most < limit


@pytest.fixture
def traffic(db: None) -> None:
    """2 ready, 3 running and 1 due in the queue of the page; others elsewhere and later."""
    for _ in range(3):
        enqueue_and_claim()
    noop.enqueue_many([{}] * 2)
    for queue, delay in (("default", 3600), ("bulk", 3600), ("bulk", 0.001), ("default", 0.001)):
        noop.using(queue=queue, delay=delay).enqueue()
    run_sql("UPDATE django_jobs_job SET available_at = now() WHERE available_at < now() + '1 min'")
    noop.using(queue="bulk").enqueue_many([{}] * 5)
    run_sql("ANALYZE django_jobs_job")


def test_the_query_has_the_number_of_the_rows(traffic: None) -> None:
    states = "SELECT status, count(*) FROM django_jobs_job WHERE queue = 'default' GROUP BY 1"
    assert dict(run_sql(states)) == {"ready": 2, "running": 3, "scheduled": 2}
    assert run_sql(QUERY) == [(2 + 3 + 1,)]


def test_of_a_paused_queue_the_query_counts_what_runs(traffic: None) -> None:
    """No pod could do more."""
    pause(["default"])
    assert run_sql(QUERY) == [(3,)]
    resume(["default"])
    assert run_sql(QUERY) == [(6,)]


def test_the_query_finds_the_running_jobs_of_a_small_queue_behind_many_of_another(
    db: None,
) -> None:
    for queue, count in (("bulk", 1_500), ("default", 3)):
        noop.using(queue=queue).enqueue_many([{}] * count)
        assert len(claim_ready(register_worker(), queue, limit=count)) == count
    assert run_sql(QUERY) == [(3,)]
    noop.using(delay=0.001).enqueue()
    noop.using(queue="bulk", delay=0.001).enqueue_many([{}] * 1_500)
    run_sql(
        "UPDATE django_jobs_job SET available_at = now() - interval '1 s' WHERE status ="
        " 'scheduled'"
    )
    assert run_sql(QUERY) == [(4,)]


def test_the_role_of_the_page_may_send_the_query(traffic: None) -> None:
    (rights,) = (block.body for block in blocks_of("docs/kubernetes.md") if block.language == "sql")
    role = f"autoscaler_{uuid.uuid4().hex[:8]}"
    for statement in rights.replace("autoscaler", role).split(";")[:-1]:
        run_sql(statement)
    run_sql(f"SET LOCAL ROLE {role}")
    assert run_sql(QUERY) == [(6,)]
    run_sql("RESET ROLE")


def hpa_expression() -> str:
    """What the adapter asks Prometheus for the autoscaler."""
    (rule,) = PAGE["adapter-config.yaml"]["externalRules"]
    (entry,) = PAGE["hpa.yaml"]["spec"]["metrics"]
    metric = entry["external"]["metric"]
    assert metric["name"] == rule["name"]["as"]
    series, _, _ = rule["seriesQuery"].partition("{")
    labels = metric["selector"]["matchLabels"]
    matchers = ",".join(f'{label}="{value}"' for label, value in labels.items())
    expression = rule["metricsQuery"].replace("<<.Series>>", series)
    return str(expression.replace("<<.LabelMatchers>>", matchers))


@needs_promtool
def test_the_hpa_sees_each_job_once_though_all_processes_are_scraped(traffic: None) -> None:
    _, text = render()
    assert_values([Phase(text.decode(), 1)], hpa_expression(), {"{}": 5.0})


@needs_promtool
def test_of_a_paused_queue_the_hpa_sees_what_runs(traffic: None) -> None:
    pause(["default"])
    _, text = render()
    assert_values([Phase(text.decode(), 1)], hpa_expression(), {"{}": 3.0})


@pytest.fixture
def many(fresh_tables: None) -> None:
    """100,000 ready jobs, a tenth of them in another queue, and 10,000 that are due."""
    fill("ready", 100_000)
    fill("scheduled", 10_000)
    analyze("django_jobs_job")


@pytest.mark.slow
def test_the_query_reads_a_thousand_of_many_jobs(many: None) -> None:
    assert run_sql(QUERY) == [(1000 + 1000,)]
    nodes = explain(QUERY, ())
    assert "Seq Scan" not in {
        node["Node Type"] for node in nodes if node.get("Relation Name") == "django_jobs_job_live"
    }
    assert max(node["Actual Rows"] for node in nodes) <= 3_000
    assert sum(node.get("Rows Removed by Filter", 0) for node in nodes) <= 1_000


@pytest.mark.processes
def test_the_health_check_of_compose_asks_a_worker(start_worker: Start) -> None:
    service = files("docs/containers.md")["compose.yaml"]["services"]["jobs"]
    worker = start_worker(*changed(service["command"]))
    port = port_of(worker)
    until_answer(port, "/healthz", 200)
    kind, *check = service["healthcheck"]["test"]
    assert (kind, check[0]) == ("CMD", "python")
    check = [part.replace(option(service["command"], "--health-port"), str(port)) for part in check]
    healthy = subprocess.run([sys.executable, *check[1:]], stderr=subprocess.PIPE)
    assert healthy.returncode == 0, healthy.stderr
    worker.end()
    assert subprocess.run([sys.executable, *check[1:]], stderr=subprocess.PIPE).returncode != 0
