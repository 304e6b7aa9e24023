"""What a worker says of the mistakes of the first ten minutes, in a project of ``startproject``."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.documents.project import Project
from tests.patience import PATIENCE
from tests.worker.processes import until

pytestmark = pytest.mark.processes

FROM_A_VIEW = """
from django_jobs import job


@job
def from_a_view() -> None: ...
"""
URLS = """
from shop import views

urlpatterns = []
"""


@pytest.fixture
def project(shop: Project, project: Project) -> Project:
    """A shop that runs jobs."""
    project.begin_as(shop)
    return project


def test_a_worker_warns_that_the_app_is_missing_in_the_settings(project: Project) -> None:
    project.add("mysite/settings.py", "INSTALLED_APPS.remove('shop')\n")
    said = project.console("python manage.py jobworker")
    assert "No job type is known: no app in INSTALLED_APPS has a jobs.py" in said


def test_a_worker_warns_of_a_handler_that_only_the_urls_import(project: Project) -> None:
    project.write("shop/views.py", FROM_A_VIEW)
    project.write("mysite/urls.py", URLS)
    said = project.console("python manage.py jobworker")
    assert "shop.from_a_view is known only by chance: import shop.views in the jobs.py" in said
    project.add("shop/jobs.py", "\nfrom . import views\n")
    assert "by chance" not in project.console("python manage.py jobworker")


def test_a_worker_in_development_warns_that_its_code_has_changed(
    project: Project, tmp_path: Path
) -> None:
    log = tmp_path / "worker.log"
    with log.open("w") as output:
        worker = subprocess.Popen(
            ["python", "manage.py", "jobworker", "--lease-seconds", "3"],
            cwd=project.directory,
            env=project.environment(),
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        until(lambda: "is ready." in log.read_text(), what="the worker is ready")
        os.utime(project.directory / "shop" / "jobs.py", (time.time() + 60,) * 2)
        changed = f"Changed since this worker started: {os.path.join('shop', 'jobs.py')}."
        until(lambda: changed in log.read_text(), what=changed)
    finally:
        worker.send_signal(signal.SIGINT)
        assert worker.wait(PATIENCE) == 0


def test_a_worker_in_development_shows_what_handlers_log(project: Project) -> None:
    project.add(
        "shop/jobs.py",
        "\nimport logging\n\n\n@job\ndef count() -> None:\n"
        '    logging.getLogger("shop").info("counted %s", 41 + 1)\n'
        '    logging.getLogger("shop").debug("left out")\n',
    )
    project.add("mysite/settings.py", '\nDJANGO_JOBS["RUN_LOGS"] = "INFO"\n')
    project.console("python manage.py shell -c 'from shop.jobs import count; count.enqueue()'")
    said = project.console("python manage.py jobworker")
    assert "django_jobs.W007" in said  # without DEBUG nothing shows it
    assert said.count("counted 42") == 1
    assert "left out" not in said
