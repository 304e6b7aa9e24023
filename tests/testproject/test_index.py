"""The demo's index: the files, the jobs that store what is in them, and the direct count."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, transaction

from django_jobs.models import Job, JobStatus
from testproject.demo import checking, sources
from testproject.demo.jobs import index_installation, index_package, summarise_package
from testproject.demo.models import Module, Package

NAMES = ["alone", "not_utf8", "pack"]


def enqueued(job_type: str) -> list[str]:
    jobs = Job.objects.filter(job_type=job_type).order_by("pk")
    return [job.payload["name"] for job in jobs]


def index_all() -> None:
    for name in NAMES:
        index_package(name)
        summarise_package(name)


def test_only_packages_with_sources_are_indexed(
    tree: Path,
) -> None:
    assert sources.package_names(tree) == NAMES


def test_a_file_is_counted_with_its_methods_and_inner_functions(tree: Path) -> None:
    (alone,) = sources.read_package(tree, "alone")
    assert (alone.module, alone.lines, alone.functions, alone.classes) == ("alone", 6, 1, 1)
    inner = sources.read_package(tree, "pack")[2]
    assert (inner.module, inner.lines, inner.functions) == ("pack.deep.inner", 3, 2)


def test_a_file_that_cannot_be_parsed_is_recorded_with_the_reason(tree: Path) -> None:
    files = {file.path: file for file in sources.read_package(tree, "pack")}
    assert files["pack/broken.py"].error.startswith("SyntaxError: ")
    assert files["pack/broken.py"].lines == 2
    assert files["pack/escaped.py"].error == ""  # an old escape sequence is a warning only
    (not_utf8,) = sources.read_package(tree, "not_utf8")
    assert not_utf8.error.startswith("SyntaxError: ")


def test_a_parser_that_meets_another_thread_is_asked_again(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse, failures = ast.parse, [SystemError("AST constructor recursion depth mismatch")] * 5

    def fails_at_first(*given: Any, **options: Any) -> ast.Module:
        if failures:
            raise failures.pop()
        return parse(*given, **options)

    monkeypatch.setattr(ast, "parse", fails_at_first)
    (alone,) = sources.read_package(tree, "alone")
    assert (failures, alone.functions, alone.error) == ([], 1, "")


def test_the_direct_count_agrees_with_the_reading(tree: Path) -> None:
    files = [file for name in NAMES for file in sources.read_package(tree, name)]
    assert checking.count_directly(tree) == checking.Totals(
        files=len(files),
        unreadable=sum(bool(file.error) for file in files),
        lines=sum(file.lines for file in files),
        functions=sum(file.functions for file in files),
        classes=sum(file.classes for file in files),
    )


@pytest.mark.usefixtures("demo_queues")
def test_the_parent_job_fans_out_one_job_for_each_package(tree: Path) -> None:
    assert index_installation() == 3
    assert enqueued("demo.index_package") == NAMES


@pytest.mark.usefixtures("demo_queues")
def test_a_second_run_of_the_parent_job_doubles_no_children(tree: Path) -> None:
    index_installation()
    index_installation()
    assert enqueued("demo.index_package") == NAMES


@pytest.mark.usefixtures("demo_queues")
def test_a_removed_package_leaves_the_index(tree: Path) -> None:
    index_all()
    (tree / "alone.py").unlink()
    index_installation()
    assert sorted(Package.objects.values_list("name", flat=True)) == ["not_utf8", "pack"]


@pytest.mark.usefixtures("demo_queues")
def test_a_package_is_stored_together_with_the_next_step(tree: Path) -> None:
    assert index_package("pack") == 4
    assert Module.objects.filter(package__name="pack").count() == 4
    assert enqueued("demo.summarise_package") == ["pack"]


@pytest.mark.usefixtures("demo_queues")
def test_rows_and_next_step_roll_back_together(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Module.objects.create(
        package=Package.objects.create(name="elsewhere"),
        path="pack/broken.py",  # paths are unique: the insert of the same file fails
        lines=0,
        functions=0,
        classes=0,
    )
    with pytest.raises(IntegrityError), transaction.atomic():
        index_package("pack")
    assert enqueued("demo.summarise_package") == []
    assert not Package.objects.filter(name="pack").exists()


@pytest.mark.usefixtures("demo_queues")
def test_indexing_a_package_again_replaces_its_rows(tree: Path) -> None:
    index_package("pack")
    (tree / "pack" / "broken.py").unlink()
    assert index_package("pack") == 3
    assert Module.objects.filter(package__name="pack").count() == 3
    assert enqueued("demo.summarise_package") == ["pack"]


@pytest.mark.usefixtures("demo_queues")
def test_the_summary_of_a_package_has_the_totals_of_its_files(tree: Path) -> None:
    index_package("pack")
    totals = summarise_package("pack")
    assert totals == {"files": 4, "unreadable": 1, "lines": 6, "functions": 2, "classes": 0}
    package = Package.objects.get(name="pack")
    assert (package.files, package.lines) == (4, 6)
    assert package.summarised_at is not None


@pytest.mark.usefixtures("demo_queues")
def test_the_check_of_the_index_passes_for_a_complete_index(tree: Path) -> None:
    index_all()
    assert [check.passed for check in checking.check_index()] == [True, True]


@pytest.mark.usefixtures("demo_queues")
def test_the_check_of_the_index_fails_when_a_file_is_missing(tree: Path) -> None:
    index_all()
    Module.objects.get(path="alone.py").delete()
    rows, totals = checking.check_index()
    assert (rows.passed, totals.passed) == (False, True)
    assert "counted directly: 6 files" in rows.found


@pytest.mark.usefixtures("demo_queues")
def test_the_ledger_check_fails_when_an_attempt_has_no_run(tree: Path) -> None:
    index_installation.enqueue()
    assert checking.check_ledger().passed
    Job.objects.update(attempt=1, status=JobStatus.SUCCEEDED)
    assert not checking.check_ledger().passed


@pytest.mark.usefixtures("demo_queues")
def test_the_dead_letter_check_fails_when_a_neighbour_is_convicted(tree: Path) -> None:
    index_installation.enqueue()
    Job.objects.update(status=JobStatus.DEAD)
    check = checking.check_dead_letters()
    assert (check.passed, check.found) == (False, "demo.index_installation")
    assert not checking.check_all_others_succeeded().passed
