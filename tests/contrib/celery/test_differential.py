"""A Celery project does the same with the one line and without it, but for what docs/celery.md says.

Real workers run the same situations: Celery's with files as its broker, and ``jobworker``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("celery")

from django.db import connection

PACKAGE = "tests.contrib.celery.differential"
PROJECT = Path(__file__).resolve().parents[3]
PAGE = PROJECT / "docs" / "celery.md"
WORKERS = {
    "celery": ("celery", "-A", PACKAGE, "worker", "-c", "4", "-Q", "default,emails,bulk,strict"),
    "jobworker": ("django", "jobworker", "--skip-checks"),
}
TASK_CLS = {
    "celery": "celery.contrib.django.task:DjangoTask",
    "jobworker": "django_jobs.contrib.celery:JobsTask",
}


def start(side: str, folder: Path) -> subprocess.Popen[bytes]:
    """Start a process that sends all situations, and its worker."""
    folder.mkdir()
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("PYTEST")},
        "DJANGO_SETTINGS_MODULE": f"{PACKAGE}.settings",
        "TEST_DATABASE_NAME": connection.settings_dict["NAME"],
        "DIFFERENTIAL_FOLDER": str(folder),
        "TASK_CLS": TASK_CLS[side],
    }
    command = [sys.executable, "-m", f"{PACKAGE}.script", sys.executable, "-m", *WORKERS[side]]
    with (folder / "script").open("wb") as log:
        return subprocess.Popen(
            command, cwd=PROJECT, env=environment, stdout=log, stderr=log, start_new_session=True
        )


def records(folder: Path) -> Any:
    text = (folder / "script").read_text()
    assert (folder / "records.json").exists(), text
    return json.loads((folder / "records.json").read_text())


@pytest.mark.django_db(transaction=True)
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_each_situation(tmp_path: Path) -> None:
    sides = {side: start(side, tmp_path / side) for side in WORKERS}
    for one in sides.values():
        one.wait()
    out = Path(os.environ.get("DIFFERENTIAL_KEEP", tmp_path))
    for side in sides:
        (out / f"{side}.json").write_text(json.dumps(records(tmp_path / side), indent=1))
        (out / f"{side}.log").write_bytes((tmp_path / side / "log").read_bytes())
