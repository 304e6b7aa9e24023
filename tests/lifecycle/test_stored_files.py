"""Files that payloads, results and checkpoints refer to."""

from __future__ import annotations

import asyncio
import io
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.files.base import ContentFile
from django.db import OperationalError, transaction

from django_jobs import If, PayloadError, Stored, Workflow, chain, enqueue, registry
from django_jobs.domain.outcomes import Succeeded
from django_jobs.domain.payload import STORED
from django_jobs.lifecycle import stored_files
from django_jobs.lifecycle.operations import jobs as job_operations
from django_jobs.lifecycle.stored_files import insert_with_files
from django_jobs.maintenance.history import Partitions
from django_jobs.maintenance.retention import StoredFiles
from django_jobs.models import Job, Progress, StoredFile
from django_jobs.testing import immediate, run_jobs
from django_jobs.worker.execution import handler_call
from tests.app.file_jobs import count_bytes, read_loud, remember, seen, shout, shout_async
from tests.factories import analyze, copies_of, enqueue_and_claim, explain, in_threads, run_sql
from tests.lifecycle.test_pruning import age
from tests.lifecycle.test_replacing import WAITING
from tests.maintenance.test_history import make_days
from tests.patience import PATIENCE
from tests.worker.attempts import Desk
from tests.worker.processes import until

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def folder(settings: Any, tmp_path: Path) -> Path:
    settings.STORAGES = {
        **settings.STORAGES,
        "jobs": {
            "BACKEND": "django.core.files.storage.FileSystemStorage",
            "OPTIONS": {"location": str(tmp_path), "base_url": "/files/"},
        },
    }
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "STORAGE": {"alias": "jobs"}}
    seen.clear()
    return tmp_path


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def of_jobs() -> Any:
    return StoredFile.objects.exclude(job_id=0)


def sweep() -> int:
    return StoredFiles().run_once()


def limit(settings: Any, above: int | None) -> None:
    settings.DJANGO_JOBS = {
        **settings.DJANGO_JOBS,
        "STORAGE": {"alias": "jobs", "above_bytes": above},
    }


def test_a_handler_reads_the_file_that_was_enqueued(folder: Path) -> None:
    enqueued = count_bytes.enqueue(Stored(ContentFile(b"a,b\n", "../my report.csv")))
    (name,) = files(folder)
    assert name.startswith(f"django_jobs/{datetime.now(UTC):%Y-%m-%d}/")
    assert name.endswith("-my_report.csv")
    reference = {STORED: name, "name": "my report.csv", "size": 4}
    assert enqueued.payload == Job.objects.get().payload == {"report": reference}
    assert StoredFile.objects.values_list("name", "job_id").get() == (name, enqueued.pk)
    run_jobs()
    assert seen == [("my report.csv", 4, b"a,b\n")]
    assert Job.objects.get().status == "succeeded"


def test_a_job_that_runs_at_once_reads_its_file() -> None:
    with immediate():
        count_bytes.enqueue(Stored(b"x", "x.csv"))
        count_bytes.enqueue_many([{"report": Stored(b"yy", "y.csv")}])
    assert seen == [("x.csv", 1, b"x"), ("y.csv", 2, b"yy")]


def test_files_of_many_jobs_are_saved_and_registered(folder: Path) -> None:
    payloads = [{"report": Stored(io.BytesIO(bytes(size)))} for size in range(3)]
    ids = count_bytes.enqueue_many([*payloads, {"report": None}])
    assert set(StoredFile.objects.values_list("job_id", flat=True)) == set(ids[:3])
    run_jobs()
    assert [(name, len(content)) for name, _, content in seen] == [("file", n) for n in range(3)]


def test_of_an_enqueue_that_fails_no_file_is_left(folder: Path) -> None:
    with pytest.raises(PayloadError, match="a set is not JSON"):
        count_bytes.enqueue([Stored(b"x"), set()])
    held = count_bytes.using(idempotency_key="k")
    kept = held.enqueue(Stored(b"x"))
    assert held.enqueue(Stored(b"y")) == kept
    assert files(folder) == [StoredFile.objects.get().name]


def test_a_commit_that_may_have_succeeded_leaves_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = transaction.Atomic.__exit__

    def lost(self: Any, *args: Any) -> None:
        ended(self, *args)
        raise OperationalError("the connection was lost")

    monkeypatch.setattr(transaction.Atomic, "__exit__", lost)
    with pytest.raises(OperationalError):
        insert_with_files("app.count_bytes", {"report": Stored(b"x")}, lambda _: Job(pk=7))
    monkeypatch.undo()
    assert len(files(folder)) == 1


def test_what_a_rolled_back_transaction_left_is_found_by_its_day(folder: Path) -> None:
    kept = count_bytes.enqueue(Stored(b"kept"))
    with transaction.atomic():
        count_bytes.enqueue(Stored(b"gone"))
        transaction.set_rollback(True)
    assert StoredFile.objects.get().job_id == kept.pk
    assert sweep() == 0
    assert len(files(folder)) == 2
    StoredFile.objects.filter(job_id=0).delete()  # no day was listed
    today = folder / "django_jobs" / f"{datetime.now(UTC):%Y-%m-%d}"
    past = f"{datetime.now(UTC) - timedelta(days=2):%Y-%m-%d}"
    today.rename(today.with_name(past))
    run_sql("UPDATE django_jobs_storedfile SET name = replace(name, %s, %s)", [today.name, past])
    (today.with_name(past) / "notes.txt").write_text("not ours")
    assert sweep() == 1
    left = StoredFile.objects.get(job_id=kept.pk).name
    assert files(folder) == sorted([left, f"django_jobs/{past}/notes.txt"])
    assert StoredFile.objects.get(job_id=0).name == past
    assert sweep() == 0


def test_a_file_is_deleted_after_the_last_job_that_refers_to_it(folder: Path) -> None:
    first = count_bytes.enqueue(Stored(b"shared"))
    second = count_bytes.enqueue(**first.payload)
    Job.objects.filter(pk=first.pk).delete()
    assert sweep() == 1
    assert len(files(folder)) == 1
    run_jobs()
    assert seen == [("file", 6, b"shared")]
    Job.objects.filter(pk=second.pk).delete()
    assert sweep() == 1
    assert files(folder) == []
    with pytest.raises(PayloadError, match="is not there, or was deleted with its job"):
        count_bytes.enqueue(**first.payload)
    assert not Job.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_file_that_another_job_shares_meanwhile_stays(folder: Path) -> None:
    first = count_bytes.enqueue(Stored(b"x"))
    payload, begun = first.payload, threading.Event()
    Job.objects.all().delete()

    def act(number: int) -> Any:
        if number == 1:
            assert begun.wait(PATIENCE)
            return sweep()
        with transaction.atomic():
            second = count_bytes.enqueue(**payload)
            begun.set()
            until(lambda: run_sql(WAITING) == [(1,)])
        return second.pk

    second, swept = in_threads(2, act)
    assert swept == 1
    assert of_jobs().get().job_id == second
    assert len(files(folder)) == 1


def test_a_file_goes_with_the_partition_of_its_job(folder: Path) -> None:
    enqueued = count_bytes.enqueue(Stored(b"x"))
    run_jobs()
    make_days(9)
    age(9, [enqueued.pk])
    assert sweep() == 0
    while Partitions(budget=60).run_once():
        pass
    assert not Job.objects.exists()
    assert sweep() == 1
    assert files(folder) == []


def test_a_replay_finds_its_file(folder: Path) -> None:
    failing = count_bytes.using(max_attempts=1)
    enqueued = failing.enqueue(Stored(b"x"), fails=True)
    run_jobs()
    assert Job.objects.get().status == "dead"
    assert sweep() == 0
    job_operations.replay([enqueued.pk], check=lambda job: None)
    run_jobs()
    assert seen == [("file", 1, b"x")] * 2
    assert of_jobs().get().job_id == enqueued.pk


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "secret.txt", "django_jobs/../secret.txt", 7, "django_jobs/2026-01-01/x"],
)
def test_a_reference_that_leads_elsewhere_is_refused(folder: Path, path: Any) -> None:
    (folder / "secret.txt").write_text("secret")
    hostile = {STORED: path, "name": "x", "size": 1}
    with pytest.raises(PayloadError, match="refers to no file that was stored"):
        count_bytes.enqueue(hostile)
    job = count_bytes.enqueue(Stored(b"x"))
    Job.objects.filter(pk=job.pk).update(payload={"report": hostile})
    run_jobs()
    assert seen == []
    assert Job.objects.get().status == "dead"


def test_what_has_no_job_of_its_own_takes_no_file() -> None:
    with pytest.raises(PayloadError, match="a Stored is not JSON; files are for enqueue"):
        chain(count_bytes.step(report=Stored(b"x")))
    with pytest.raises(PayloadError, match="a Stored is not JSON; files are for enqueue"):
        count_bytes.enqueue_on_commit(Stored(b"x"))
    with pytest.raises(TypeError, match="bytes or a file in binary mode, not a StringIO"):
        Stored(io.StringIO("text"))


def test_without_the_setting_there_is_none(settings: Any) -> None:
    settings.DJANGO_JOBS = {}
    with pytest.raises(ImproperlyConfigured, match='needs DJANGO_JOBS\\["STORAGE"\\]'):
        Stored(b"x")


def test_a_file_that_is_gone_is_an_error_that_no_retry_mends(folder: Path) -> None:
    enqueued = count_bytes.enqueue(Stored(b"x", "x.csv"))
    (name,) = files(folder)
    (folder / name).unlink()
    run_jobs()
    enqueued.refresh_from_db()
    assert (enqueued.status, enqueued.attempt) == ("dead", 1)
    assert f"the file {name} is not there: it was deleted" in enqueued.reason
    with pytest.raises(FileNotFoundError):
        Stored.load(enqueued.payload)["report"].read()


def test_a_file_that_the_storage_does_not_delete_keeps_its_row(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [count_bytes.enqueue(Stored(b"x")) for _ in range(2)]
    Job.objects.all().delete()
    path = folder / StoredFile.objects.get(job_id=jobs[0].pk).name
    path.unlink()
    path.mkdir()
    (path / "in the way").touch()
    sweeper = StoredFiles()
    with pytest.raises(OSError, match="not empty"):
        sweeper.run_once()
    assert of_jobs().get().job_id == jobs[0].pk
    (path / "in the way").unlink()
    assert sweeper.run_once() == 1
    assert not of_jobs().exists()


def test_a_result_has_files(folder: Path) -> None:
    made = shout.enqueue(Stored(b"hello", "hello.txt"))
    run_jobs()
    result = Job.objects.get().result
    assert set(result["loud"]) == {STORED, "name", "size"}
    assert result["given"] == made.payload["text"]
    loaded = Stored.load(result)
    assert (loaded["loud"].read(), loaded["given"].read()) == (b"HELLO", b"hello")
    assert set(StoredFile.objects.values_list("job_id", flat=True)) == {made.pk}
    Job.objects.all().delete()
    assert sweep() == 2
    assert files(folder) == []


def test_an_async_handler_returns_a_file() -> None:
    shout_async.enqueue("hello")
    run_jobs()
    (loud,) = Stored.load(Job.objects.get().result)
    assert loud.read() == b"HELLO"


@pytest.mark.parametrize("times", [1, 2])
def test_a_step_takes_the_files_of_another_ones_result(settings: Any, times: int) -> None:
    limit(settings, 1000)
    loud = shout.step(text="hello" * 1000, times=times)
    chain(loud, read_loud.step().taking(given="shout")).start()
    run_jobs()
    assert Job.objects.get(job_type="app.read_loud").result == f"{5000 * times} HELLO"


def test_files_of_an_async_handler_are_read_and_saved_off_the_loop() -> None:
    work_in_threads: list[Any] = []

    async def in_thread(work: Any) -> Any:
        work_in_threads.append(work)
        return work()

    async def await_async(coroutine: Any, timeout: float | None) -> Any:
        return await coroutine

    attempt = Desk().begin(enqueue_and_claim(shout_async, Stored(b"hello")))
    attempt.in_thread, attempt.await_async = in_thread, await_async
    outcome = asyncio.run(handler_call.acall(attempt))
    assert isinstance(outcome, Succeeded)
    assert outcome.result == '"HELLO"'
    assert len(work_in_threads) == 2


def test_a_result_whose_file_cannot_be_saved_is_a_note(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    (folder / "django_jobs").write_text("in the way")
    shout.enqueue("hello")
    run_jobs()
    ended = Job.objects.get()
    assert ended.status == "succeeded"
    assert "not_stored" in ended.result


def test_large_arguments_and_results_are_files_by_themselves(settings: Any, folder: Path) -> None:
    limit(settings, 2000)
    text = "é" * 2_000_000  # more than MAX_PAYLOAD_BYTES
    large = shout.enqueue(text, times=2)
    (small, other) = shout.enqueue_many([{"text": "x" * 1500}, {"text": "x" * 3000}])
    payloads = dict(Job.objects.values_list("pk", "payload"))
    assert payloads[large.pk]["text"].keys() == {STORED, "size"}
    assert payloads[large.pk]["times"] == 2
    assert payloads[small] == {"text": "x" * 1500}
    assert payloads[other]["text"]["size"] == 3002
    run_jobs()
    results = dict(Job.objects.values_list("pk", "result"))
    assert Stored.load(results[large.pk]) == text.upper() * 2
    assert Stored.load(results[other]["loud"]).read() == b"X" * 3000
    assert results[other]["given"] == "x" * 3000  # an item beside a file stays


def test_with_the_setting_a_plain_job_takes_no_further_statement(
    settings: Any, django_assert_num_queries: Any
) -> None:
    limit(settings, 2000)
    shout.enqueue("x")
    with django_assert_num_queries(1):
        shout.enqueue("x")


@pytest.mark.parametrize("rows, result", [(0, "part"), (1000, 2000)])
def test_a_checkpoint_has_files_or_is_one(
    settings: Any, folder: Path, rows: int, result: Any
) -> None:
    limit(settings, 500)
    made = remember.enqueue(rows)
    for _ in range(3):
        run_jobs()
        run_sql("UPDATE django_jobs_job_live SET available_at = now() - interval '1 second'")
    assert Job.objects.get().result == result
    assert len(files(folder)) == 2
    assert sweep() == 0
    run_sql("UPDATE django_jobs_storedfile SET created_at = now() - interval '2 days'")
    assert sweep() == 1
    last = Progress.objects.get().checkpoint
    assert files(folder) == [last[STORED] if rows else last["file"][STORED]]
    assert of_jobs().get().job_id == made.pk


@pytest.mark.usefixtures("fresh_tables")
def test_the_statements_read_by_index() -> None:
    copies_of(count_bytes.enqueue(None), 3_000)
    run_sql(
        "INSERT INTO django_jobs_storedfile (name, job_id, is_checkpoint, created_at)"
        " SELECT 'django_jobs/' || n, n, false, now() FROM generate_series(1, 20000) AS n"
    )
    analyze("django_jobs_storedfile", "django_jobs_job_live")
    for statement, parameters in {
        stored_files.UNUSED: {"after": 0, "page": 100, "files": 50},
        stored_files.HOLD: {"names": ["a", "b"]},
        stored_files.KNOWN: {"names": ["a", "b"]},
        stored_files.LOCK: {"ids": [1, 2]},
        stored_files.UNSHARED: {"ids": [1, 2]},
        stored_files.DELETE: {"ids": [1, 2], "left": []},
        stored_files.LAST_DAY: {},
    }.items():
        for node in explain(statement, parameters):
            assert node["Node Type"] != "Seq Scan" or node["Relation Name"] not in {
                "django_jobs_storedfile",
                "django_jobs_job_live",
            }, statement


def test_a_file_of_another_job_is_taken_by_enqueue_alone(folder: Path) -> None:
    """It would be deleted with that job. What a job has already stays."""
    first = count_bytes.enqueue(Stored(b"x", "x.csv"))
    other = count_bytes.using(delay=900).enqueue(None)
    workflow = Workflow("test.files")
    workflow.step(count_bytes)
    try:
        for refused in (
            lambda: other.edit(payload=first.payload, reason="x"),
            lambda: workflow.start(**first.payload),
            lambda: enqueue("test.files", first.payload),
            lambda: enqueue("test.files", {"report": Stored(b"x")}),
            lambda: registry.get("test.files").enqueue_many([first.payload]),
            lambda: chain(count_bytes.step(**first.payload)).start(),
            lambda: enqueue("test.files", {"report": [{STORED: "../../etc/passwd"}]}),
        ):
            with pytest.raises(PayloadError, match=r"file of another job|files are for enqueue"):
                refused()
    finally:
        registry.forget_workflow("test.files")
    mine = count_bytes.using(delay=900).enqueue(Stored(b"y", "y.csv"))
    mine.edit(payload={**mine.payload, "fails": True}, reason="x")
    assert Job.objects.get(pk=mine.pk).payload["report"] == mine.payload["report"]
    assert of_jobs().count() == 2


@pytest.mark.parametrize("more", [{}, {"size": 1, "more": 2}, {"name": "x"}])
def test_a_dict_that_is_nearly_a_reference_is_refused(folder: Path, more: dict[str, Any]) -> None:
    path = count_bytes.enqueue(Stored(b"x", "x.csv")).payload["report"][STORED]
    for value in ({STORED: path, **more}, [{STORED: path, **more}]):
        with pytest.raises(PayloadError, match="is that of a reference to a file"):
            count_bytes.enqueue(value)
        with pytest.raises(PayloadError, match="is that of a reference to a file"):
            count_bytes.enqueue_many([{"report": value}])


def test_a_result_on_which_a_branch_depends_stays_in_its_row(settings: Any, folder: Path) -> None:
    limit(settings, 1_000)
    workflow = Workflow("test.branch")
    big = workflow.step(shout, payload={"text": "x" * 10, "times": 200})
    workflow.step(count_bytes, after={big: If(equals="X" * 2_000)}, payload={"report": None})
    try:
        run = workflow.start()
        run_jobs()
    finally:
        registry.forget_workflow("test.branch")
    run.refresh_from_db()
    assert set(run.steps.values_list("status", flat=True)) == {"succeeded"}
    assert files(folder) == []
