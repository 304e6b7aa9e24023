"""A Celery project does the same with the one line and without it, but for the rows of a page.

Real workers run the same situations: Celery's with files as its broker, and ``jobworker``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("celery")

from celery import VERSION
from django.db import connection

from tests.patience import PATIENCE

PACKAGE = "tests.contrib.celery.differential"
PROJECT = Path(__file__).resolve().parents[3]
PAGE = PROJECT / "docs" / "celery.md"
NOW = int(time.time())
WORKERS = {
    "celery": ("celery", "-A", PACKAGE, "worker", "-c", "4", "-Q", "default,emails,bulk,strict"),
    "jobworker": ("django", "jobworker", "--skip-checks", "--prefork", "4"),
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
        "DIFFERENTIAL_NOW": str(NOW),
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


def unordered(value: Any) -> Any:
    """A value without the order of its keys."""
    if isinstance(value, list):
        return [unordered(one) for one in value]
    if isinstance(value, dict):
        told = {key: unordered(one) for key, one in value.items()}
        return told | {"dict": sorted(told["dict"], key=repr)} if "dict" in told else told
    return value


def compare(name: str, there: Any, here: Any) -> Iterator[str]:
    """``name``, if the two differ by more than the order of keys; else that, if they do."""
    if there != here:
        yield "dict" if unordered(there) == unordered(here) else name


def compare_each(kind: str, there: dict[str, Any], here: dict[str, Any]) -> Iterator[str]:
    for key in there.keys() | here.keys():
        yield from compare(f"{kind}.{key}", there.get(key), here.get(key))


def compare_results(there: Any, here: Any) -> Iterator[str]:
    """Names of what the two results say otherwise."""
    if not (isinstance(there, dict) and isinstance(here, dict)):
        yield from compare("AsyncResult.parent", there, here)
    elif "group" in there and "group" in here:
        there, here = {**there}, {**here}
        members = there.pop("group"), here.pop("group")
        parents = there.pop("parent"), here.pop("parent")
        yield from compare_each("GroupResult", there, here)
        yield from compare("GroupResult.results", *map(len, members))
        for one in (*zip(*members, strict=False), parents):
            yield from compare_results(*one)
    elif "id" in there and "id" in here:
        # The row of a task has what Celery stores with its result alone.
        here = {**here, **{key: None for key in EXTENDED if there[key] is None}}
        yield from compare_results(there["parent"], here["parent"])
        parent = {"parent": None}
        yield from compare_each("AsyncResult", there | parent, here | parent)
    else:
        yield from compare("AsyncResult", there, here)


def compare_tasks(there: dict[str, Any], here: dict[str, Any]) -> Iterator[str]:
    """Names of what two tasks saw otherwise."""
    yield from compare("runs", len(there["requests"]), len(here["requests"]))
    for request, other in zip(there["requests"], here["requests"], strict=False):
        yield from compare_each("request", request, other)
    calls, others = there["calls"], here["calls"]
    in_order = {call[0] for call in calls} & {call[0] for call in others} - OF_THE_POOL
    for name in dict.fromkeys(call[0] for call in (*calls, *others)):
        both = ([call for call in side if call[0] == name] for side in (calls, others))
        first = slice(1 if name == "task_received" else None)  # again for each retry, by then
        yield from compare(name, *(found[first] for found in both))
    order = ([call[0] for call in side if call[0] in in_order] for side in (calls, others))
    yield from compare("order of calls", *order)


def differences(there: dict[str, Any], here: dict[str, Any]) -> Iterator[str]:
    """Names of what is otherwise in one situation."""
    for key in ("raised", "before", "ended", "then"):
        yield from compare(key, there.get(key), here.get(key))
    sent, also = there["published"], here["published"]
    yield from compare("before_task_publish", len(sent), len(also))
    for message, other in zip(sent, also, strict=True) if len(sent) == len(also) else ():
        yield from compare_each("before_task_publish", message, other)
    yield from compare_results(there.get("result"), here.get("result"))
    for name in there["tasks"].keys() | here["tasks"].keys():
        both = (side["tasks"].get(name, {"requests": [], "calls": []}) for side in (there, here))
        yield from compare_tasks(*both)


def rows(title: str) -> list[str]:
    """The first cells of the table of a section."""
    section = PAGE.read_text().split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    cells = [line[2:].split(" | ")[0] for line in section.splitlines() if line.startswith("| ")]
    return [cell for cell in cells if "`" in cell]


OF_THE_POOL = {"task_received", "task_revoked", "task_failure"}
"""What another process than the task's sends: their order is that of chance."""
CODE = re.compile(r"`([^`]+)`")
EXTENDED = ("name", "args", "kwargs", "queue", "worker", "retries", "date_done")


@pytest.mark.django_db(transaction=True)
@pytest.mark.processes
def test_celery_and_jobworker_do_the_same_but_for_what_the_page_names(tmp_path: Path) -> None:
    sides = [start(side, tmp_path / side) for side in WORKERS]
    try:
        for one in sides:
            one.wait()
    finally:
        for one in sides:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
    print(f"what both did: {tmp_path}/*/records.json")
    check(*(records(tmp_path / side) for side in WORKERS))


def check(there: Any, here: Any) -> None:
    """Each difference has its row, and each row a difference."""
    differing = {name for row in rows("What differs") for name in leading(row)}
    refused = {name for row in rows("What is refused") for name in CODE.findall(row)}
    used, red, count = set[str](), list[str](), Counter[str]()
    for name, record in there.items():
        kinds = set(record["kind"].split("|"))
        found = set(differences(record, here[name]))
        rest = found - differing
        if rest and not kinds & (differing | refused):
            red.append(f"{name} [{record['kind']}]: {', '.join(sorted(rest))}")
        used |= found
        if rest and len(kinds) == 1:  # one of two may be the same by now
            used |= kinds
        if kinds & refused and rest:
            count["refused"] += 1
        elif rest:
            count["named by what it is"] += 1
        else:
            count["the same but for what is named of all" if found else "the same"] += 1
    endless = sorted({name for side in (there, here) for name in side if not side[name]["ended"]})
    assert not endless, f"both wait for {PATIENCE:.0f} s for them: {endless}"
    print(f"{len(there)} situations:", ", ".join(f"{n} {what}" for what, n in count.items()))
    assert not red, f"{len(red)} have no row in {PAGE.name}:\n" + "\n".join(red)
    if VERSION < (5, 7):
        return  # the page is that of the newest one: what older ones do as we do needs no row
    unused = sorted(differing - used)
    assert not unused, f"rows of {PAGE.name} of which no situation tells: {unused}"


def leading(cell: str) -> list[str]:
    """The names that a cell begins with; behind them it may explain."""
    match = re.match(r"(?:(?:, )?`[^`]+`)*", cell)
    return CODE.findall(match[0] if match else "")
