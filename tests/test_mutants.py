"""The faults that ``python -m tests.mutants`` plants, and the tests it runs for them."""

from __future__ import annotations

import ast

import pytest

from tests.mutants.faults import Fault, choose, faults_in
from tests.mutants.stages import own_tests, stages

MODULE = "django_jobs/lifecycle/ending.py"


def results(source: str) -> set[tuple[str, str]]:
    """The kind of each fault, and the module with it."""
    return {
        (fault.kind, fault.planted(source.encode()).decode())
        for fault in faults_in(MODULE, source.encode())
    }


@pytest.mark.parametrize(
    ("kind", "source", "planted"),
    [
        ("comparison", "if 0 < ( a ) < 9: ...", "if 0 <= ( a ) < 9: ..."),
        ("comparison", "ok = a == b", "ok = a != b"),
        ("arithmetic", "due = at + wait", "due = at - wait"),
        ("logic", 'ü = "ü" and b', 'ü = "ü" or b'),
        ("logic", "ok = not (a)", "ok = (a)"),
        ("constant", "def f(*, wait=True): ...", "def f(*, wait=False): ..."),
        ("permission", 'demand(actor, "run")', "True"),
        ("permission", "ok = request.user.has_perm(RUN) or a", "ok = True or a"),
        ("permission", "if scope_of(actor): ...", "if None: ..."),
        ("permission", "if no: raise PermissionDenied(a)", "if no: pass"),
        ("permission", "may = allowed_by(RUN)", "may = (lambda *given, **named: True)"),
        ("lock", "rows.select_for_update(of=(1,)).first()", "rows.first()"),
        (
            "lock",
            'S = "SELECT 1\\nFOR UPDATE OF j SKIP LOCKED"',
            'S = "SELECT 1\\nFOR UPDATE OF j"',
        ),
        ("lock", 'S = f"""SELECT {a}\nFOR NO KEY UPDATE\n"""', 'S = f"""SELECT {a}\n"""'),
        (
            "fence",
            'S = f"... WHERE {A} AND job.attempt = s.attempt AND b"',
            'S = f"... WHERE {A} AND true AND b"',
        ),
        (
            "fence",
            'S = "... WHERE worker_id = %(worker)s::bigint"',
            'S = "... WHERE true"',
        ),
        (
            "fence",
            'S = "WHERE a AND job.attempt = ANY(ARRAY[s.attempt]) AND b"',
            'S = "WHERE a AND true AND b"',
        ),
        ("fence", "S = \"WHERE status IN ('a', 'b')\"", 'S = "WHERE true"'),
        ("fence", "jobs.filter(pk=1, attempt=n)", "jobs.filter(pk=1, **{})"),
        ("comparison", 'S = "WHERE at < %(now)s"', 'S = "WHERE at <= %(now)s"'),
        ("comparison", 'S = "WHERE a <> b"', 'S = "WHERE a = b"'),
        ("logic", 'S = "WHERE NOT EXISTS (b)"', 'S = "WHERE EXISTS (b)"'),
    ],
)
def test_a_fault_of_each_kind_is_planted(kind: str, source: str, planted: str) -> None:
    assert (kind, planted) in results(source)


@pytest.mark.parametrize(
    "source",
    [
        '"""Waits for rows: SELECT 1 FOR UPDATE and not True."""',
        "@dataclass(frozen=True, slots=True)\nclass Ending: ...",
        'text = "a" + f"{b}"',
        'text = "UPDATE django_jobs_job SET attempt = attempt"',
        "ok = slot.may_start(job)",
        "a: int | None",
    ],
)
def test_text_and_options_without_behaviour_have_no_fault(source: str) -> None:
    assert results(source) == set()


def test_each_fault_in_this_file_leaves_a_module_that_compiles() -> None:
    with open(__file__, "rb") as file:
        source = file.read()
    faults = list(faults_in(MODULE, source))
    assert faults
    for fault in faults:
        ast.parse(fault.planted(source))
        assert fault.diff(source)


def test_a_seed_chooses_the_same_faults_of_all_kinds_and_rooms() -> None:
    faults = [
        Fault(f"django_jobs/{room}/a.py", number, number, kind, b"")
        for room, most in (("api", 40), ("worker", 2))
        for kind in ("lock", "logic")
        for number in range(most)
    ]
    chosen = choose(faults, 7, 6)
    assert chosen == choose(reversed(faults), 7, 6)
    assert chosen != choose(faults, 8, 6)
    assert [fault.kind for fault in chosen] == ["lock", "logic"] * 3
    assert sum(fault.room == "worker" for fault in chosen) >= 2
    assert len(set(choose(faults, 7, 99))) == len(faults)


def test_the_first_stage_has_the_tests_with_the_name_of_the_module() -> None:
    own = "tests/lifecycle/test_settling.py"
    waits = "tests/lifecycle/test_settling_waits.py"
    bulk = "tests/lifecycle/operations/test_jobs.py"
    tests = {own, waits, bulk, "tests/worker/test_settling.py", "tests/lifecycle/test_settlings.py"}
    assert own_tests("django_jobs/lifecycle/settling.py", tests) == [own, waits]
    assert own_tests("django_jobs/lifecycle/settling_rows.py", tests) == [own, waits]
    assert own_tests("django_jobs/lifecycle/operations/bulk.py", tests) == [bulk]
    assert own_tests("django_jobs/lifecycle/scope.py", tests) == []


def test_the_last_stage_has_the_slow_tests_and_the_far_ones() -> None:
    numbers, arguments = zip(*stages(MODULE, {"tests/lifecycle/test_ending.py"}), strict=True)
    assert numbers == (1, 2, 3, 3)
    assert "not slow and not processes" in arguments[1]
    assert "slow or processes" in arguments[2]
    assert "tests/worker" in arguments[3]
