"""``demo``: a web server, a worker and a stream of jobs, until it is stopped."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable
from pathlib import Path

from django.contrib.auth.models import User
from django.urls import NoReverseMatch, reverse

from . import work
from .receiver import Receiver
from .running import (
    Children,
    StopAsked,
    free_port,
    start_web_server,
    start_worker,
    wait_until_served,
)

TRICKLE_SECONDS = 3.0
LOGIN = "demo"
PAGES = (
    ("admin:django_jobs_overview_changelist", "the overview: what runs, waits and fails now"),
    ("admin:django_jobs_job_changelist", "jobs, each with its runs"),
    ("admin:django_jobs_deadletter_changelist", "the three bad jobs, in the dead letters"),
    ("admin:demo_printer_changelist", "a printer: give it paper, and replay demo.print_label"),
    ("admin:django_jobs_queue_changelist", "queues: pause one and see it fill"),
    ("admin:django_jobs_workflowrun_changelist", "workflows; a refund waits for its approval"),
    ("admin:django_jobs_schedule_changelist", "schedules: what comes next; make one of your own"),
    ("admin:django_jobs_worker_changelist", "the worker's processes, one of them killed"),
    ("admin:demo_package_changelist", "the index that the jobs build"),
)


def run_live(say: Callable[[str], None], stop: StopAsked, port: int) -> None:
    """Run until a stop is requested. Raises :class:`DemoError` if a process ends earlier."""
    password = prepare_user()
    with (
        tempfile.TemporaryDirectory(prefix="django_jobs-demo-") as logs,
        Receiver() as receiver,
        Children(Path(logs)) as children,
    ):
        found = free_port(port)
        if port not in (0, found):
            say(f"Port {port} is in use; taking {found}.")
        web = start_web_server(children, found)
        work.enqueue_everything(receiver)
        work.start_shop()
        start_worker(children)
        wait_until_served(found, reverse("admin:login"), stop, web.check)
        work.enqueue_killer()
        if not stop.asked:
            for line in introduction(f"http://127.0.0.1:{found}", password, Path(logs)):
                say(line)
        trickle = work.Trickle(receiver)
        while not stop.wait(TRICKLE_SECONDS):
            children.check()
            trickle.enqueue_some()
        say("Stopping …")
    say("Stopped.")


def prepare_user() -> str:
    """Make the demo's superuser and give it a new password, which is returned."""
    password = secrets.token_urlsafe(9)
    user, _ = User.objects.get_or_create(username=LOGIN)
    user.is_staff = user.is_superuser = True
    user.set_password(password)
    user.save()
    return password


def introduction(address: str, password: str, logs: Path) -> list[str]:
    """The lines to print once everything runs."""
    pages = [(page, text) for name, text in PAGES if (page := _page(name))]
    width = max(len(page) for page, _ in pages)
    return [
        "",
        f"Address   {address}/",
        f"Login     {LOGIN}",
        f"Password  {password}",
        "",
        "Look at",
        *(f"  {address}{page.ljust(width)}  {text}" for page, text in pages),
        "",
        f"Logs of the web server and the worker are in {logs}.",
        "Some webhooks, and now and then an index and a failure, keep coming. Ctrl-C stops it all.",
        "",
    ]


def _page(name: str) -> str:
    try:
        return reverse(name)
    except NoReverseMatch:
        return ""
