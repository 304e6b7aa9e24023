"""A server of a module's own, with workers that are gone when a test ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import environ
from django.apps import apps
from django.db import connection, connections

from django_jobs.models import Queue
from tests.clusters import Cluster
from tests.worker.processes import JobWorker


@contextmanager
def queries_on(url: str) -> Iterator[None]:
    """Queries of this thread go to the database at ``url``, those of the package as well."""
    usual = connections["default"]
    other = usual.copy()
    other.settings_dict |= {"HOST": "", "PORT": "", "OPTIONS": {}, **environ.Env.db_url_config(url)}
    connections["default"] = other
    try:
        yield
    finally:
        other.close()
        connections["default"] = usual


def empty() -> None:
    """Remove every row but those of the queues."""
    tables = ", ".join(
        model._meta.db_table
        for label in ("django_jobs", "app")
        for model in apps.get_app_config(label).get_models()
        if not model._meta.proxy and model is not Queue
    )
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {tables} RESTART IDENTITY CASCADE")


class Stage:
    """An own cluster, emptied, on which the queries of this thread and the workers run."""

    def __init__(self, cluster: Cluster, directory: Path, blocker: Any) -> None:
        self.cluster = cluster
        self._directory = directory
        self._blocker = blocker
        self._workers: list[JobWorker] = []
        self._exits = ExitStack()

    def __enter__(self) -> Self:
        self._exits.enter_context(self._blocker.unblock())
        self._exits.enter_context(queries_on(self.cluster.url))
        empty()
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.end()
        self._exits.close()
        for worker in self._workers:
            print(f"{worker.log.name}:\n{worker.text()}")  # shown with a test that failed
            assert "Traceback" not in worker.text(), worker.text()

    def start_worker(self, *arguments: str, **environment: str) -> JobWorker:
        """Start a worker on the cluster, unless the environment says another database."""
        log = self._directory / f"worker-{len(self._workers)}.log"
        environment = {
            "DATABASE_URL": self.cluster.url,
            "TEST_DATABASE_NAME": "postgres",
            **environment,
        }
        self._workers.append(JobWorker(*arguments, log=log, **environment))
        return self._workers[-1]

    def restart(self, how: int) -> None:
        """Stop the server and start it again."""
        self.cluster.stop(how)
        self.come_back()

    def come_back(self) -> None:
        """Start the server after a stop."""
        self.cluster.start()
        connection.close()


def settings_module(directory: Path, name: str, text: str) -> dict[str, str]:
    """The environment of a process whose settings are the tests' with ``text`` behind."""
    (directory / f"{name}.py").write_text(f"from tests.settings import *\n{text}\n")
    path = os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")])
    return {"DJANGO_SETTINGS_MODULE": name, "PYTHONPATH": path}
