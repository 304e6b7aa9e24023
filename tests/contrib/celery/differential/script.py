"""Sends all situations, starts the worker of the command line, waits for what becomes of them,
stops it, and writes a record of each."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

import django
from celery import signals
from celery.result import AsyncResult, EagerResult, GroupResult
from kombu.exceptions import DecodeError

from tests.patience import PATIENCE

from .celery import CONTROL, FOLDER, MESSAGES, PROCESSED, RESULTS
from .records import Reader, shown
from .situations import ALL, Situation

UUID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
OF_A_MESSAGE = (
    *("id", "root_id", "parent_id", "group", "timelimit", "retries", "shadow", "ignore_result"),
    *("argsrepr", "kwargsrepr", "lang"),
)
AT = re.compile(r"situation (\d+)/")


class Sent:
    """A situation, and what is known of it."""

    def __init__(self, number: int, situation: Situation) -> None:
        self.number, self.situation = number, situation
        self.record: dict[str, Any] = {"kind": situation.kind or situation.name}
        self.result: Any = None
        self.is_done = False
        self.was_during = situation.during is None
        self.published: list[Any] = []

    def send(self) -> None:
        """Send it, and note each message."""

        def at(name: str) -> str:
            return f"situation {self.number}/{name}"

        def publish(sender: Any = None, **given: Any) -> None:
            if sender == "celery.chord_unlock":
                return
            body, headers = given["body"], given["headers"]
            told = {key: shown(headers.get(key)) for key in OF_A_MESSAGE}
            told |= {"eta": bool(headers.get("eta")), "expires": bool(headers.get("expires"))}
            told |= {"task": sender, "routing_key": given["routing_key"]}
            told |= {"args": shown(list(body[0])), "kwargs": shown(dict(body[1]))}
            self.published.append(told)

        signals.before_task_publish.connect(publish)
        try:
            self.result = self.situation.send(at)
        except Exception as error:
            self.record["raised"] = [type(error).__name__, str(error)]
            self.is_done = True
            return
        finally:
            signals.before_task_publish.disconnect(publish)
            self.record["published"] = self.published
        # What ``state`` and ``result`` are read from; each of them would ask again.
        asked = [one._get_task_meta() for one in leaves(self.result)]
        self.record["before"] = [[meta["status"], shown(meta["result"])] for meta in asked]

    def meddle(self, begun: Any) -> None:
        """Do what is to be done while it runs, once it does."""
        if not self.was_during and f"situation {self.number}/a" in begun:
            self.was_during = True
            self.situation.during(self.result)  # type: ignore[misc]

    def has_ended(self, seen: Counter[str]) -> bool:
        """See whether it has, by its results or by calls that were seen."""
        ends = self.situation.ends
        if self.is_done or not self.was_during:
            return self.is_done
        if ends is None:
            self.is_done = all(is_ready(one) for one in all_of(self.result))
        else:
            prefix = f"situation {self.number}/"
            wanted = Counter(f"{prefix}{name}" for name in ends)
            self.is_done = wanted <= seen or prefix + self.situation.unless in seen
        return self.is_done

    def told(self, names: dict[str, str]) -> None:
        """Add what its result says."""
        self.record["ended"] = self.is_done
        if self.result is not None:
            name_all(self.result, f"situation {self.number}/result", names)
            self.record["result"] = tell(self.result)
        if self.situation.then is not None and "raised" not in self.record:
            try:
                self.record["then"] = shown(self.situation.then(self.result))
            except Exception as error:
                self.record["then"] = shown(error)


def leaves(result: Any) -> list[Any]:
    if isinstance(result, GroupResult):
        return [one for child in result.results for one in leaves(child)]
    return [result] if isinstance(result, AsyncResult) else []


def all_of(result: Any) -> list[Any]:
    """Its leaves, and those of what comes before."""
    members = getattr(result, "results", [])
    before = [one for member in (result, *members) for one in [getattr(member, "parent", None)]]
    return [*leaves(result), *(one for parent in before if parent for one in all_of(parent))]


def is_ready(result: Any) -> bool:
    try:
        return bool(result.ready())
    except DecodeError:  # the file is not yet written
        return False


def name_all(result: Any, name: str, names: dict[str, str]) -> None:
    """Names for the ids of a result, those before it and those in it."""
    if result is None or not hasattr(result, "id"):
        return
    names.setdefault(result.id, name)
    if isinstance(result, GroupResult):
        for number, one in enumerate(result.results):
            name_all(one, f"{name}.{number}", names)
    name_all(result.parent, f"{name}.parent", names)


def tell(result: Any) -> Any:
    if isinstance(result, GroupResult):
        return {
            "group": [tell(one) for one in result.results],
            "parent": tell(result.parent) if result.parent else None,
            "completed": result.completed_count(),
            "successful": result.successful(),
            "failed": result.failed(),
        }
    if not isinstance(result, AsyncResult) or isinstance(result, EagerResult):
        return shown(result)
    told = {
        "id": result.id,
        "state": result.state,
        "value": shown(result.result),
        "traceback": (str(result.traceback or "").strip().splitlines() or [""])[-1],
        "children": [shown(one) for one in result.children or []],
        "parent": tell(result.parent) if result.parent else None,
        "date_done": bool(result.date_done),
        "name": result.name,
        "retries": result.retries,
        "args": shown(result.args),
        "kwargs": shown(result.kwargs),
        "queue": result.queue,
        "worker": bool(result.worker) or None,
    }
    if result.ready():
        told["get"] = got(result)
    return told


def got(result: Any) -> Any:
    try:
        return shown(result.get(timeout=PATIENCE))
    except BaseException as error:
        return {"raises": shown(error)}


def wait(all_sent: list[Sent], worker: subprocess.Popen[bytes]) -> None:
    """Wait for all to end, as long as any does."""
    read, at, seen = Reader(), dict[str, str](), Counter[str]()
    left = deque(all_sent)
    deadline = time.monotonic() + PATIENCE
    while left and worker.poll() is None:
        lines, before = read.new(), len(left)
        for line in lines:
            at |= {line["id"]: line["at"]} if line.get("at") else {}
            name = at.get(line["id"], "")
            seen[name if line["call"] == LAST else f"{name} {line['call']}"] += 1
        for one in all_sent:
            one.meddle(at.values())
        # A second at a time: others run until something is done to them.
        asked_until = time.monotonic() + 1.0
        while left and time.monotonic() < asked_until and left[0].has_ended(seen):
            left.popleft()
        # To ask a thousand results took a minute beside others, and lines came meanwhile.
        if lines or len(left) < before:
            deadline = time.monotonic() + PATIENCE
        elif time.monotonic() > deadline:
            break
        time.sleep(0.1)
    for one in left:
        one.has_ended(seen)


def in_order_of_runs(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of each run of a task together: a retry may begin in another process before what it
    repeats has ended."""
    count, runs, places = Counter[str](), dict[tuple[str, int], int](), []
    for line in lines:
        task, place = line["id"], (line["id"], line["pid"])
        if line["call"] == "task_prerun":
            count[task] += 1
            runs[place] = count[task]
        places.append(runs.get(place, count[task]))
    order = sorted(range(len(lines)), key=places.__getitem__)
    return [lines[at] for at in order]


def main(worker: list[str]) -> None:
    django.setup()
    for folder in (MESSAGES, PROCESSED, CONTROL, RESULTS):
        folder.mkdir(parents=True, exist_ok=True)
    all_sent = [Sent(*one) for one in enumerate(ALL)]
    for one in all_sent:
        one.send()
    with Path(FOLDER, "log").open("wb") as log:
        process = subprocess.Popen(worker, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait(all_sent, process)
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
    finally:
        process.kill()
    lines = Reader().new()
    names = {line["id"]: line["at"] for line in lines if line.get("at")}
    for one in all_sent:
        one.told(names)
    records = {one.situation.name: {**one.record, "tasks": {}} for one in all_sent}
    for line in in_order_of_runs(lines):
        name = names.get(line["id"], "")
        if (match := AT.match(name)) and all_sent[int(match[1])].situation.ends != ():
            tasks = records[all_sent[int(match[1])].situation.name]["tasks"]
            task = tasks.setdefault(AT.sub("", name), {"requests": [], "calls": []})
            task["calls"].append([line["call"], *line["fields"]])
            if "request" in line:
                task["requests"].append(line["request"])

    def name_of(match: re.Match[str]) -> str:
        return AT.sub("", f"<{names[match[0]]}>") if match[0] in names else "<an id>"

    text = AT.sub("", UUID.sub(name_of, json.dumps(records, default=str)))
    Path(FOLDER, "records.json").write_text(text)


LAST = "task_postrun"
"""The call that ends a run."""

if __name__ == "__main__":
    main(sys.argv[1:])
