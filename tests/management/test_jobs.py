"""``manage.py jobs VERB``: each command by its verb, and the verbs that have no other name."""

from __future__ import annotations

import getpass
import json
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth import get_permission_codename
from django.contrib.auth.models import Group, Permission, User
from django.core.management import CommandError, call_command, get_commands
from django.core.management.base import BaseCommand
from django.test import RequestFactory
from django.utils import timezone

import django_jobs
from django_jobs.management.commands import jobs
from django_jobs.management.subcommands import OF_COMMANDS, VERBS
from django_jobs.models import Job, Queue, Tenant, Worker
from tests.app.jobs import noop
from tests.commands import printed
from tests.factories import enqueue_and_claim, register_worker, run_sql

pytestmark = pytest.mark.django_db

OPERATOR = f"{getpass.getuser()}@{socket.gethostname()}"


def run(*arguments: object) -> str:
    return printed("jobs", *arguments).strip()


def test_each_command_but_the_worker_is_a_verb() -> None:
    ours = {name for name, app in get_commands().items() if app == "django_jobs"}
    assert ours - {"jobs", "jobworker"} == {f"job{verb}" for verb in OF_COMMANDS}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_has_its_own_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        jobs.Command().run_from_argv(["manage.py", "jobs", verb, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: manage.py jobs {verb} ")


def test_a_verb_prints_what_its_command_prints() -> None:
    job = noop.enqueue()
    assert run("why", job.pk).splitlines()[0] == printed("jobwhy", str(job.pk)).splitlines()[0]
    assert '"queues"' in run("status", "--json")


@pytest.mark.django_db(transaction=True)
def test_a_shell_gets_the_output_and_the_exit_code_of_the_verb(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BaseCommand, "check", lambda *args, **options: None)
    jobs.Command().run_from_argv(["manage.py", "jobs", "status", "--json", "-v", "0"])
    assert '"queues"' in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        jobs.Command().run_from_argv(["manage.py", "jobs", "status", "--check", "ready<0"])
    assert ended.value.code != 0
    jobs.Command().run_from_argv(["manage.py", "jobs", "-v", "0", "status", "--json"])
    assert '"queues"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("statsu",), "there is no verb 'statsu'; did you mean 'status'? known are: archive, "),
        (("colour",), "there is no verb 'colour'; known are: archive, cancel, "),
        (("worker",), "there is no verb 'worker'; manage.py jobworker runs jobs"),
        (("retry", "7"), "there is no verb 'retry'; write replay"),
        (("--queue", "status"), "error: unrecognized arguments: --queue"),
    ],
)
def test_what_is_no_verb_is_refused_with_the_one_that_is_meant(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        jobs.Command().run_from_argv(["manage.py", "jobs", *arguments])
    assert ended.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_the_help_says_what_each_verb_does(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        jobs.Command().run_from_argv(["manage.py", "jobs", *arguments])
    assert ended.value.code == (0 if arguments else 2)
    printed = capsys.readouterr()
    lines = (printed.out + printed.err).partition("\nverbs:\n")[2].splitlines()
    assert [line[2:14].strip() for line in lines if line[2] != " "] == VERBS
    assert max(map(len, lines)) < 80
    assert "  paused      List what is paused: the newest 1,000 pauses, of all kinds" in lines


def test_queues_are_paused_with_reason_and_operator_and_resumed() -> None:
    assert run("pause", "queue", "emails", "default", "--reason", "maintenance") == (
        "emails: paused. Jobs that run are not affected.\n"
        "default: paused. Jobs that run are not affected."
    )
    queue = Queue.objects.get(name="emails")
    assert (queue.paused_reason, queue.paused_by) == ("maintenance", OPERATOR)
    assert run("pause", "queue", "emails") == "emails: already paused."
    assert run("resume", "queue", "emails") == "emails: resumed."
    assert run("resume", "queue", "emails") == "emails: it was not paused."


def test_a_pause_without_a_reason_says_who() -> None:
    run("pause", "queue", "default")
    run("pause", "tenant", "acme")
    assert Queue.objects.get(name="default").paused_reason == f"paused by {OPERATOR}"
    assert Tenant.objects.get().paused_by == OPERATOR


def test_a_pause_may_have_an_end() -> None:
    begun = timezone.now()
    run("pause", "queue", "default", "--until", "2h")
    end = Queue.objects.get(name="default").paused_until
    assert end is not None
    assert begun + timedelta(hours=2) <= end <= timezone.now() + timedelta(hours=2)
    run("pause", "tenant", "acme", "--until", "2099-12-24T18:00:00+01:00")
    run("pause", "tenant", "bolt", "--until", "2099-12-24")
    found = dict(Tenant.objects.values_list("name", "paused_until"))
    assert found["acme"] == datetime(2099, 12, 24, 17, tzinfo=UTC)
    assert timezone.localtime(found["bolt"]).isoformat().startswith("2099-12-24T00:00:00")
    with pytest.raises(CommandError, match=r"--until: 2001-01-01 .* has passed"):
        run("pause", "queue", "default", "--until", "2001-01-01")


def test_what_is_paused_is_listed_the_newest_first() -> None:
    assert run("paused") == "Nothing is paused."
    assert run("paused", "--json") == "[]"
    run("pause", "queue", "default", "--reason", "maintenance", "--until", "2099-12-24T18:00Z")
    run("pause", "job_type", noop.name)
    run("pause", "tenant", "acme", "--reason", "unpaid")
    run_sql("UPDATE django_jobs_queue SET paused_at = '-infinity' WHERE name = 'default'")
    head, *lines = run("paused").splitlines()
    assert head.split() == ["KIND", "NAME", "SINCE", "UNTIL", "BY", "REASON"]
    assert [line.split()[:2] for line in lines] == [
        ["tenant", "acme"], ["job_type", noop.name], ["queue", "default"]
    ]  # fmt: skip
    assert lines[2].split()[2:] == [
        *("-infinity", "2099-12-24", "18:00:00+00", OPERATOR, "maintenance")
    ]
    assert [row["reason"] for row in json.loads(run("paused", "--json"))] == [
        *("unpaid", "", "maintenance")
    ]


@pytest.mark.parametrize("wrong", ["tomorrow", "2099-13-01", "", "-2h"])
def test_an_end_that_is_no_time_is_refused(wrong: str) -> None:
    with pytest.raises((CommandError, SystemExit)):
        run("pause", "queue", "default", f"--until={wrong}")
    assert Queue.objects.get(name="default").paused is False


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_nothing_is_changed_if_one_name_is_unknown(verb: str) -> None:
    if verb == "resume":
        run("pause", "queue", "default")
    with pytest.raises(CommandError, match="no queue is named 'defautl'"):
        run(verb, "queue", "default", "defautl")
    assert Queue.objects.get(name="default").paused is (verb == "resume")


def test_what_waits_gets_a_priority() -> None:
    held, first, second = enqueue_and_claim(), noop.enqueue(), noop.using(delay=9).enqueue()
    with pytest.raises(CommandError, match="2 of 4 jobs refused"):
        run("priority", 7, first.pk, second.pk, held.id, 10**12)
    with pytest.raises(CommandError, match="a priority is from -100 to 100, not 101"):
        run("priority", 101, first.pk)
    assert run("priority", -5, second.pk) == "The priority of 1 job is -5."
    found = dict(Job.objects.values_list("pk", "priority"))
    assert (found[first.pk], found[second.pk], found[held.id]) == (7, -5, 0)


def test_workers_drain_by_name_and_by_id() -> None:
    workers = [register_worker(name=name) for name in ("web-1", "web-1", "web-2", "web-3")]
    assert run("drain", "web-1", workers[2]) == "Asked 3 workers to drain, at the next heartbeat."
    asked = Worker.objects.exclude(drain_requested_at=None)
    assert {worker.pk for worker in asked} == set(workers[:3])
    assert {worker.stop_reason for worker in asked} == {f"drained by {OPERATOR}"}
    with pytest.raises(CommandError, match="no worker is named 'web-9'; jobs status lists them"):
        run("drain", "web-3", "web-9")
    with pytest.raises(CommandError, match="1 of 1 worker refused"):
        run("drain", 10**12)
    assert Worker.objects.get(pk=workers[3]).drain_requested_at is None


@pytest.mark.parametrize("also", ["--command", "--host"])
def test_all_processes_of_a_command_or_a_host_drain(also: str) -> None:
    for name, host, pid in (("one", "a", 7), ("two", "a", 7), ("other", "a", 8), ("far", "b", 7)):
        Worker.objects.filter(pk=register_worker(name)).update(host=host, supervisor_pid=pid)
    run("drain", "one", also)
    asked = set(Worker.objects.exclude(drain_requested_at=None).values_list("name", flat=True))
    assert asked == {"one", "two"} | ({"other"} if also == "--host" else set())


# Roles


def held(group: str) -> set[str]:
    permissions = Group.objects.get(name=group).permissions
    return set(permissions.values_list("codename", flat=True))


def all_of_the_app() -> set[str]:
    ours = Permission.objects.filter(content_type__app_label="django_jobs")
    return set(ours.values_list("codename", flat=True))


def test_three_groups_are_made_each_with_more_than_the_one_before() -> None:
    lines = run("roles").splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "jobs viewer",
        "jobs operator",
        "jobs admin",
    ]
    assert all(": made, with" in line for line in lines)
    viewer, operator, admin = (held(line.partition(":")[0]) for line in lines)
    assert viewer < operator < admin == all_of_the_app()
    assert viewer == {one for one in admin if one.startswith("view_")} - {
        *("view_job_payload", "view_job_error")
    }
    assert {"cancel_job", "replay_job", "pause_queue", "stop_worker", "run_doctor"} <= operator
    assert admin - operator == {
        *("view_job_payload", "reveal_job", "edit_job", "enqueue_job", "start_workflow"),
        *(f"{verb}_{row}" for verb in ("add", "change")
          for row in ("queue", "resource", "tenant", "schedule")),
        *("delete_tenant", "delete_schedule"),
    }  # fmt: skip


def test_they_are_brought_up_to_date_and_keep_what_other_apps_gave() -> None:
    run("roles")
    group = Group.objects.get(name="jobs operator")
    foreign = Permission.objects.exclude(content_type__app_label="django_jobs").first()
    assert foreign is not None
    group.permissions.add(foreign, Permission.objects.get(codename="edit_job"))
    group.permissions.remove(Permission.objects.get(codename="cancel_job"))
    assert ": 1 added, 1 removed." in run("roles").splitlines()[1]
    assert foreign in group.permissions.all()
    assert "edit_job" not in held("jobs operator")
    assert run("roles").splitlines()[1].endswith(" permissions.")


@pytest.mark.django_db(transaction=True)
def test_migrate_keeps_those_that_exist_and_makes_none() -> None:
    call_command("migrate", verbosity=0)
    assert not Group.objects.exists()
    run("roles", "--prefix", "staff: ")
    run("roles")
    Group.objects.get(name="jobs viewer").delete()
    for name in ("jobs operator", "staff: operator"):
        Group.objects.get(name=name).permissions.clear()
    call_command("migrate", verbosity=0)
    assert not Group.objects.filter(name="jobs viewer").exists()
    assert "cancel_job" in held("jobs operator")
    assert held("staff: operator") == set()


def test_no_permission_does_nothing(rf: RequestFactory) -> None:
    """Each of Django's opens a page of its model, and the others are named where they are asked."""
    request, package = rf.get("/"), Path(django_jobs.__file__).parent
    asked = "".join(
        path.read_text()
        for path in package.rglob("*.py")
        if path.relative_to(package).parts[0] not in ("models", "migrations", "management")
    )
    idle = set()
    for model in apps.get_app_config("django_jobs").get_models():
        for verb in model._meta.default_permissions:
            name = get_permission_codename(verb, model._meta)
            request.user = User()
            request.user._perm_cache = {f"django_jobs.{name}"}
            page: Any = admin.site._registry.get(model)
            may: Any = getattr(page, f"has_{verb}_permission", None)
            if not may or not (may(request) or (verb == "delete" and may(request, model()))):
                idle.add(name)
        idle |= {name for name, _label in model._meta.permissions if f'{name}"' not in asked}
    assert idle == set()
