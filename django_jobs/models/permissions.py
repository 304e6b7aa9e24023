"""The permissions of jobs, besides Django's."""

from __future__ import annotations

JOB_PERMISSIONS = {
    "cancel_job": "Can cancel jobs",
    "stop_job": "Can stop running jobs by force",
    "reprioritize_job": "Can change the priority of jobs",
    "run_job": "Can run scheduled jobs now",
    "edit_job": "Can edit jobs that have not started, and dead ones",
    "enqueue_job": "Can enqueue jobs by hand",
    "inspect_job": "Can see what running jobs are doing",
    "replay_job": "Can replay dead jobs",
    "dismiss_job": "Can dismiss dead jobs",
    "export_job": "Can export lists of jobs, failures, runs and ticks",
    "view_job_payload": "Can see payloads and results in full",
    "view_job_error": "Can see error messages and tracebacks",
    "reveal_job": "Can reveal hidden payloads and errors, which the history notes",
}
