"""A real Prometheus scrapes a real server with the configuration of the page, and evaluates the
rules."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import yaml
from pytest_django import Settings
from pytest_django.live_server_helper import LiveServer

from tests.factories import make_dead
from tests.test_docs import blocks, page
from tests.worker.processes import until

from .promtool import RULES, needs_promtool, promtool, rules

pytestmark = [
    pytest.mark.processes,
    pytest.mark.urls("tests.monitoring.urls"),
    pytest.mark.skipif(
        shutil.which("prometheus") is None,
        reason="prometheus is missing: apt-get install prometheus",
    ),
]
TOKEN = "secret"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """With the files of the page."""
    (config,) = blocks(page("monitoring.md"), "yaml")
    (tmp_path / "prometheus.yml").write_text(config)
    (tmp_path / "alerts.yml").write_text(RULES.read_text())
    (tmp_path / "metrics_token").write_text(TOKEN)
    return tmp_path


@needs_promtool
def test_promtool_accepts_the_configuration(directory: Path) -> None:
    promtool("check", "config", str(directory / "prometheus.yml"))


@pytest.fixture
def prometheus(directory: Path, live_server: LiveServer, settings: Settings) -> Iterator[str]:
    """The address of one that scrapes the server of the test each second."""
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "METRICS_TOKEN": TOKEN}
    file = directory / "prometheus.yml"
    config = yaml.safe_load(file.read_text())
    config["global"] = {"evaluation_interval": "1s"}
    (job,) = config["scrape_configs"]
    job |= {"scrape_interval": "1s", "scrape_timeout": "1s"}
    job["static_configs"] = [{"targets": [live_server.url.removeprefix("http://")]}]
    file.write_text(yaml.safe_dump(config))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    arguments = (f"--config.file={file}", f"--storage.tsdb.path={directory / 'data'}")
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(
            ["prometheus", *arguments, f"--web.listen-address={address}"], stdout=log, stderr=log
        )
        yield f"http://{address}/api/v1/"
        process.terminate()
        process.wait()
    print((directory / "log").read_text())


def get(address: str) -> Any:
    """The data of an answer; nothing until it answers."""
    try:
        with urlopen(address) as answer:
            return json.load(answer)["data"]
    except URLError:
        return None


def test_it_evaluates_each_rule_and_a_dead_job_fires_one(prometheus: str) -> None:
    make_dead()
    fires = quote('ALERTS{alertname="DjangoJobsDeadGrowth", alertstate="firing"}')
    until(lambda: (data := get(f"{prometheus}query?query={fires}")) and data["result"])
    (alert,) = (one for one in get(f"{prometheus}alerts")["alerts"] if one["state"] == "firing")
    summary = "Jobs of default that died in the last hour: 1."
    assert alert["annotations"]["summary"] == summary
    (group,) = get(f"{prometheus}rules")["groups"]
    assert {rule["name"]: rule["health"] for rule in group["rules"]} == {
        rule.get("alert") or rule["record"]: "ok" for rule in rules()
    }
