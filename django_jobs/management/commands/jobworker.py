"""Run jobs."""

from __future__ import annotations

import argparse
import logging
import os
from typing import Any, ClassVar

from django_jobs.api import hooks
from django_jobs.conf import conf
from django_jobs.doctor import alerting
from django_jobs.maintenance.schedules import Scheduling
from django_jobs.maintenance.tasks import maintenance_tasks
from django_jobs.management.base import (
    OperatorCommand,
    count,
    demand_no_transaction,
    positive,
    seconds,
)
from django_jobs.management.worker import startup, terminal
from django_jobs.management.worker.reloading import Reloader, code_watch, same_command
from django_jobs.management.worker.startup import check_processes, chosen_options, warn_of_job_types
from django_jobs.testing import failpoints
from django_jobs.worker.connections import close_everything, note_need
from django_jobs.worker.options import DEFAULT_ASYNC_CONCURRENCY, DEFAULT_THREADS
from django_jobs.worker.supervisor.single_process import SingleProcess
from django_jobs.worker.supervisor.supervisor import Supervisor


class Command(OperatorCommand):
    instead: ClassVar = {
        "": "--queues emails,default names the queues",
        "-Q": "--queues emails,default names the queues",
        **dict.fromkeys(("-c", "--concurrency"), "--threads 8, or --prefork 8, runs eight at once"),
        **dict.fromkeys(("-B", "--beat"), "each worker fires schedules: leave it out"),
        **dict.fromkeys(("-l", "--loglevel"), "--verbosity 2 logs more"),
        "--workers": "--processes 2 starts two of them",
    }
    help = "Run jobs until stopped. SIGTERM or SIGINT drains; a second one stops at once."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add(
            "--queues",
            help="Queues with weights, such as critical:5,default:1. Default: all queues, "
            "including those created later.",
        )
        add("--strict", action="store_true", help="Serve the queues strictly in the given order.")
        add("--processes", type=count, default=1, help="Worker processes.")
        add("--prefork", type=count, help="Processes of one thread each.")
        add("--threads", type=count, help=f"Threads per process. Default: {DEFAULT_THREADS}.")
        add(
            "--async-concurrency",
            type=count,
            default=DEFAULT_ASYNC_CONCURRENCY,
            metavar="N",
            help="Async handlers at once per process, apart from its threads. Default: 100.",
        )
        add(
            "--pool",
            action="append",
            metavar="QUEUES:THREADS",
            help="Threads for these queues alone, such as mail,web:16. May be repeated. Replaces "
            "--queues and --threads.",
        )
        add(
            "--drain-timeout",
            type=seconds,
            default=25.0,
            help="Seconds that running jobs have to finish after the first signal.",
        )
        add("--burst", action="store_true", help="Exit when no job is ready or due.")
        add("--lease-seconds", type=positive, help="Default: LEASE_SECONDS.")
        add("--poll-seconds", type=positive, help="Default: POLL_SECONDS.")
        add("--max-jobs", type=count, help="Replace a process after N jobs.")
        add("--max-rss", type=count, help="Replace a process above this many MB.")
        add(
            "--log-format",
            choices=("auto", "human", "keyvalue", "json"),
            default="auto",
            help="Default: human in a terminal and with DEBUG, otherwise keyvalue.",
        )
        add(
            "--no-fork",
            action="store_true",
            help="Run as one process with threads, for debuggers and systems without fork.",
        )
        add("--reload", action="store_true", help="Start again when a file of the project changes.")
        add("--parent", type=int, help="With --reload: end with this parent.")
        startup.add_arguments(parser)
        add("--name", default="", help="Name of this worker. Default: the host.")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["reload"]:
            raise SystemExit(Reloader(same_command(), self.stdout, options["parent"]).run())
        check_processes(**options)
        demand_no_transaction("jobworker")
        level = {0: logging.WARNING, 1: logging.INFO}.get(options["verbosity"], logging.DEBUG)
        for_people = terminal.connect(level, options["log_format"])
        failpoints.install(os.environ)
        worker_options = chosen_options(**options)
        tasks = [*maintenance_tasks(), *alerting()]
        if for_people:
            tasks += [code_watch(), startup.unknown_types()]
            if level <= logging.INFO:
                self.stdout.write(terminal.greeting(worker_options))
        hooks.loaded()  # before the forks, which share what is imported
        warn_of_job_types()
        close_everything()
        note_need(worker_options.connections)
        fires = conf().schedules and not worker_options.burst
        tree = Supervisor if worker_options.forks else SingleProcess
        code = tree(worker_options, tasks, Scheduling().look if fires else None).run()
        if code:
            raise SystemExit(code)
