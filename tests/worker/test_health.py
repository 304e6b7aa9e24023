"""``jobworker --health-port``, with real processes, signals and servers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from http.client import HTTPConnection
from pathlib import Path

import psutil
import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from pytest_django import Settings

from django_jobs.management.worker.startup import open_port
from django_jobs.signals import worker_event
from tests.app import jobs
from tests.factories import heard, run_sql
from tests.faults.proxy import Proxy
from tests.worker.processes import (
    PATIENCE,
    REAPS_NEVER,
    JobWorker,
    Start,
    let_go,
    until,
    until_marked,
    until_status,
)
from tests.worker.roles import Role

pytestmark = pytest.mark.processes
Answer = tuple[int, str]

PATIENT_WITH_SUPERVISOR = f"""
from django_jobs.worker.health import server
server.SUPERVISOR_SECONDS = {PATIENCE}
"""
"""As ``before``: how late the supervisor is on a busy machine is no failure of the liveness."""

PORT = ("--health-port", "0", "--health-host", "127.0.0.1")


def port_of(worker: JobWorker) -> int:
    """The port that it listens at, by its log."""
    pattern = r"event=health_server_listens host=127\.0\.0\.1 port=(\d+)"
    return int(until(lambda: re.search(pattern, worker.text()), what="it listens")[1])


def get(port: int, path: str, **headers: str) -> Answer:
    """The status and the body."""
    client = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        client.request("GET", path, headers=headers)
        response = client.getresponse()
        return response.status, response.read().decode()
    finally:
        client.close()


def until_answer(port: int, path: str, status: int, body: str = "") -> str:
    """Wait until the answer has this status, and this text in its body; returns the body."""

    def answered() -> str:
        found, text = get(port, path)
        return text if found == status and body in text else ""

    return str(until(answered, what=f"{path} is {status} {body}"))


def roles(worker: JobWorker, port: int) -> tuple[int, int, int]:
    """The health server, the heartbeat and the worker process."""
    until_answer(port, "/readyz", 200)
    (claims,) = json.loads(get(port, "/readyz", Accept="application/json")[1])["processes"]
    (server,) = (child.pid for child in worker.children() if listens(child))
    (heartbeat,) = {child.pid for child in worker.children()} - {server, claims["pid"]}
    return server, heartbeat, claims["pid"]


def listens(process: psutil.Process) -> bool:
    return any(found.status == psutil.CONN_LISTEN for found in process.net_connections())


def test_a_worker_is_ready_once_it_claims_and_not_while_it_drains(
    start_worker: Start, path: Path
) -> None:
    worker = start_worker(*PORT, "--drain-timeout", "600")
    port = port_of(worker)
    assert until_answer(port, "/readyz", 200) == "ok\n"
    assert get(port, "/healthz") == (200, "ok\n")
    job = jobs.hold.enqueue(str(path))
    until_marked(path)
    worker.signal(signal.SIGTERM)
    until_answer(port, "/readyz", 503, "draining\n")
    assert get(port, "/healthz") == (200, "ok\n")
    let_go(path)
    assert worker.wait() == 0
    until_status(job, "succeeded")
    with pytest.raises(ConnectionRefusedError):
        get(port, "/healthz")


def test_json_names_each_process_and_why_it_does_not_claim(start_worker: Start) -> None:
    worker = start_worker(*PORT, "--processes", "2")
    port = port_of(worker)
    until_answer(port, "/readyz", 200)

    def both() -> list[dict[str, object]]:
        found = json.loads(get(port, "/readyz", Accept="application/json")[1])["processes"]
        return [] if any(process["problem"] for process in found) else found

    first, second = until(both)
    assert first["worker"] != second["worker"]
    assert {first["pid"], second["pid"]} < {child.pid for child in worker.children()}
    assert json.loads(get(port, "/healthz", Accept="application/json")[1]) == {
        "ok": True,
        "problems": [],
        "processes": [],
    }
    os.kill(int(str(first["pid"])), signal.SIGSTOP)

    def shown() -> bool:
        status, body = get(port, "/readyz", Accept="application/json")
        report = json.loads(body)
        stopped, other = report["processes"]
        # It is ready while the other one claims, unless a busy machine holds up the tree.
        held_up = any("has not run for" in problem for problem in report["problems"])
        assert status == 200 or other["problem"] or held_up
        return status == 200 and "should have claimed" in stopped["problem"]

    until(shown, what="the stopped process is shown")
    os.kill(int(str(second["pid"])), signal.SIGSTOP)
    until_answer(port, "/readyz", 503, "worker process 1: it should have claimed")
    until_answer(port, "/healthz", 200)
    for process in (first, second):
        os.kill(int(str(process["pid"])), signal.SIGCONT)
    until_answer(port, "/readyz", 200)


def test_a_hung_heartbeat_fails_the_liveness_until_it_is_replaced(start_worker: Start) -> None:
    worker = start_worker(*PORT, "--lease-seconds", "8", TEST_DJANGO_JOBS=REAPS_NEVER)
    port = port_of(worker)
    stopped: list[int] = []

    def hung() -> set[str]:
        return set(re.findall(r"event=heartbeat_hangs pid=(\d+)", worker.text()))

    def is_seen() -> bool:
        # One that is stopped while it waits for the database is only replaced.
        if len(hung()) == len(stopped):
            stopped.append(roles(worker, port)[1])
            os.kill(stopped[-1], signal.SIGSTOP)
        status, text = get(port, "/healthz")
        return status == 503 and "the heartbeat process has not run for" in text

    until(is_seen)
    assert get(port, "/readyz")[0] == 503
    until(lambda: str(stopped[-1]) in hung(), what="it is noticed")
    until_answer(port, "/healthz", 200)
    until_answer(port, "/readyz", 200)
    assert not psutil.pid_exists(stopped[-1])


def test_a_hung_supervisor_fails_the_liveness(start_worker: Start) -> None:
    worker = start_worker(*PORT)
    port = port_of(worker)
    until_answer(port, "/healthz", 200)
    worker.signal(signal.SIGSTOP)
    until_answer(port, "/healthz", 503, "the supervisor has not run for")
    worker.signal(signal.SIGCONT)
    until_answer(port, "/healthz", 200)


def test_a_killed_health_server_is_replaced_at_the_same_port(start_worker: Start) -> None:
    worker = start_worker(*PORT)
    port = port_of(worker)
    server, heartbeat, claims = roles(worker, port)
    os.kill(server, signal.SIGKILL)
    until(lambda: "event=health_server_died" in worker.text())
    assert get(port, "/healthz") == (200, "ok\n")  # waits for the next one
    assert {heartbeat, claims} < {child.pid for child in worker.children()}


def test_a_killed_worker_process_is_not_ready_until_its_successor_claims(
    start_worker: Start,
) -> None:
    worker = start_worker(*PORT)
    port = port_of(worker)
    _, _, claims = roles(worker, port)
    os.kill(claims, signal.SIGSTOP)
    until_answer(port, "/readyz", 503)
    os.kill(claims, signal.SIGKILL)
    until_answer(port, "/readyz", 200)
    assert "event=process_died" in worker.text()
    assert roles(worker, port)[2] != claims


def test_nothing_answers_for_a_killed_supervisor(start_worker: Start) -> None:
    worker = start_worker(*PORT)
    port = port_of(worker)
    until_answer(port, "/readyz", 200)
    worker.signal(signal.SIGKILL)

    def refused() -> bool:
        try:
            get(port, "/healthz")
        except OSError:
            return True
        return False

    until(refused)


def test_without_the_database_a_worker_lives_and_is_not_ready(
    start_worker: Start, role: Role
) -> None:
    worker = start_worker(*PORT, DATABASE_URL=role.url, TEST_DJANGO_JOBS=REAPS_NEVER)
    port = port_of(worker)
    until_answer(port, "/readyz", 200)
    role.cut_off()
    # Whichever of its threads needs its connection first.
    lost = r"^worker process 1: its (last claim failed|settler has no connection to the database)$"
    until(lambda: re.search(lost, get(port, "/readyz")[1], re.MULTILINE))
    until_answer(port, "/readyz", 503, "the heartbeat process has no connection to the database")
    assert get(port, "/healthz") == (200, "ok\n")
    role.limit(-1)
    until_answer(port, "/readyz", 200)


def sample(text: str, name: str, **labels: str) -> float:
    """The value of one sample."""
    wanted = {f'{key}="{value}"' for key, value in labels.items()}
    (line,) = (
        line
        for line in text.splitlines()
        if line.startswith(name) and all(label in line for label in wanted)
    )
    return float(line.rpartition(" ")[2])


@pytest.mark.parametrize("fork", ["", "--no-fork"])
def test_metrics_are_those_of_the_rows(start_worker: Start, fork: str) -> None:
    jobs.noop.using(delay=3600).enqueue_many([{}] * 3)
    token = json.dumps({"METRICS_TOKEN": "let me in"})
    worker = start_worker(*PORT, *filter(None, [fork]), TEST_DJANGO_JOBS=token)
    port = port_of(worker)
    until_answer(port, "/readyz", 200)
    status, text = get(port, "/metrics", Authorization="Bearer let me in")
    assert status == 200
    labels = {"queue": "default", "state": "scheduled"}
    assert sample(text, "django_jobs_jobs{", **labels) == 3
    assert get(port, "/metrics")[0] == 401
    assert get(port, "/metrics", Authorization="Bearer let me out")[0] == 401


def test_a_scrape_behind_a_lock_is_ended_while_probes_are_answered(start_worker: Start) -> None:
    worker = start_worker(*PORT)
    port = port_of(worker)
    until_answer(port, "/readyz", 200)
    with transaction.atomic():
        run_sql("LOCK TABLE django_jobs_storedmetrics IN ACCESS EXCLUSIVE MODE")
        assert get(port, "/metrics")[0] == 503
        assert get(port, "/healthz") == (200, "ok\n")
    assert get(port, "/metrics")[0] == 200


def test_in_a_black_hole_a_worker_lives_though_its_heartbeat_is_replaced(
    start_worker: Start,
) -> None:
    with Proxy(connection.settings_dict) as proxy:
        options = ("--lease-seconds", "8", "--poll-seconds", "0.2")
        environment = {"DATABASE_URL": proxy.url, "TEST_DJANGO_JOBS": REAPS_NEVER}
        worker = start_worker(*PORT, *options, before=PATIENT_WITH_SUPERVISOR, **environment)
        port = port_of(worker)
        until_answer(port, "/readyz", 200)
        proxy.swallow()
        until_answer(port, "/readyz", 503)

        def is_replaced_and_its_successor_waits_in_vain() -> bool:
            assert get(port, "/healthz") == (200, "ok\n")
            # On a busy machine the supervisor is patient, and its connect times out before.
            _, hung, after = worker.text().partition("event=heartbeat_hangs")
            return bool(hung) and ("event=heartbeat_hangs" in after or "event=beat_failed" in after)

        until(is_replaced_and_its_successor_waits_in_vain)
        assert get(port, "/readyz")[0] == 503
        proxy.let_pass()
        until_answer(port, "/readyz", 200)


def test_a_worker_without_fork_answers_too(start_worker: Start, path: Path) -> None:
    worker = start_worker(*PORT, "--no-fork", "--drain-timeout", "600")
    port = port_of(worker)
    until_answer(port, "/readyz", 200)
    assert get(port, "/healthz") == (200, "ok\n")
    jobs.hold.enqueue(str(path))
    until_marked(path)
    worker.signal(signal.SIGTERM)
    until_answer(port, "/readyz", 503, "draining\n")
    assert get(port, "/healthz") == (200, "ok\n")
    let_go(path)
    assert worker.wait() == 0


def test_without_a_port_there_is_no_health_server(start_worker: Start, path: Path) -> None:
    worker = start_worker()
    jobs.hold.enqueue(str(path))
    until_marked(path)
    assert len(worker.children()) == 2
    assert not any(map(listens, (psutil.Process(worker.pid), *worker.children())))
    let_go(path)


@pytest.mark.django_db(transaction=True)
def test_a_port_in_use_is_an_error_at_the_start() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        arguments = ("--health-port", str(other.getsockname()[1]), "--health-host", "127.0.0.1")
        with pytest.raises(CommandError, match=r"cannot listen at 127\.0\.0\.1 port .* in use"):
            call_command("jobworker", *arguments)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "host, is_local", [("127.0.0.1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_metrics_beyond_this_machine_need_a_token(
    host: str, is_local: bool, settings: Settings
) -> None:
    for token, refusal in (None, 403), ("secret", 401):
        settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "METRICS_TOKEN": token}
        with heard(worker_event) as events:
            port = open_port(health_port=0, health_host=host)
        assert port is not None
        assert port.scrape is not None
        port.listener.close()
        status = 200 if is_local and token is None else refusal
        assert port.scrape({})[0] == status
        warned = "health_metrics_refused" in {one["sender"] for one in events}
        assert warned is (status == 403)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "port, host, problem",
    [
        ("70000", "127.0.0.1", "70000 is not from 0 to 65535"),
        ("-1", "127.0.0.1", "-1 is not from 0 to 65535"),
        ("http", "127.0.0.1", "invalid port_number value: 'http'"),
        ("0", "no.such.host.invalid", "--health-port: cannot listen at no.such.host.invalid"),
    ],
)
def test_an_impossible_address_is_an_error_at_the_start(port: str, host: str, problem: str) -> None:
    with pytest.raises(CommandError, match=problem):
        call_command("jobworker", f"--health-port={port}", "--health-host", host)
