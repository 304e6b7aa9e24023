"""No test decides by the speed of the machine. CONTRIBUTING.md has the kinds, and what to write
instead. The accounts of speed, tests/benchmarks and tests/chaos, and the soak are no tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
FILES = {path.relative_to(TESTS).as_posix(): path for path in sorted(TESTS.rglob("*.py"))}
ACCOUNTS = ("benchmarks/", "chaos/", "soak/")
OF_HANDLERS = ("app/", "contrib/celery/project/")  # what they sleep is what a test is about
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}
WAITS = {
    *("HTTPConnection", "acquire", "await_end", "communicate", "create_connection", "get", "join"),
    *("receive", "result", "run", "until", "until_marked", "until_status", "wait", "wait_procs"),
}
NOWS = {"localdate", "localtime", "now", "today"}
ALLOWED = {
    "admin/overview/test_problems.py: wait": "a function of this name moves rows back in time",
    "api/test_closing.py: import": "an end that has passed",
    "api/test_shortcuts.py: import": "any time, which JSON has not",
    "api/test_validation.py: import": "any time, or a day more than is allowed",
    "contrib/celery/test_differential.py: import": "both sides get the same",
    "contrib/celery/test_results.py: wait": "an unknown id is waited for until the time is over",
    "doctor/test_own_server.py: neighbours": "the server is its own",
    "domain/test_graph_layout.py: approx": "lengths of a picture",
    "faults/test_signals.py: sleep": "the moment itself is what is tried, and any may pass",
    "faults/test_database_refusals.py: neighbours": "the server is its own",
    "lifecycle/gates/test_admission.py: sleep": "a job is due after a millisecond",
    "lifecycle/gates/test_fairness.py: approx": "shares of slots",
    "lifecycle/test_settling_waits.py: sleep": "two threads meet at any moment",
    "mutants/trying.py: neighbours": "the server is its own",
    "sessions.py: neighbours": "the report of a failed test, which shows who else is there",
    "today.py: sleep": "until the day has ended",
    "worker/heartbeat/test_heartbeat.py: wait": "a function of this name moves a clock",
    "worker/pools/test_queue_selector.py: approx": "shares of claims",
    "worker/test_memory.py: approx": "megabytes",
    "worker/test_resilience.py: sleep": "a rate is measured, of which one quiet time counts",
    "worker/test_time_limits.py: sleep": "longer than anything waits: it could only end too soon",
    "worker/timeouts/test_limits.py: sleep": "of the handlers that are interrupted",
}  # file and kind, and why chance does not decide it


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_number(node: ast.expr, least: float) -> bool:
    value = getattr(node, "value", None)
    return type(value) in (int, float) and value >= least


def has_passed(node: ast.expr, timed: set[str]) -> bool:
    """Whether it is a time that has passed by a clock of this process, or a name of one."""
    names = {name_of(one) for one in ast.walk(node) if isinstance(one, ast.Name)}
    calls = {name_of(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)}
    differs = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)
    return bool(names & timed) or (differs and bool(calls & CLOCKS))


def is_bound(node: ast.Compare, timed: set[str]) -> bool:
    """``passed < bound``, but for a bound that is a time that has passed too."""
    sides = [node.left, *node.comparators]
    pairs = [
        (right, left) if isinstance(operator, ast.Gt | ast.GtE) else (left, right)
        for left, operator, right in zip(sides, node.ops, sides[1:], strict=False)
        if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
    ]
    return any(has_passed(less, timed) and not has_passed(more, timed) for less, more in pairs)


def is_of_all_databases(node: ast.Constant | ast.JoinedStr) -> bool:
    """Whether it reads sessions or locks of neighbours too, who run the same statements, and whose
    databases give tables the same oids."""
    text = str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node)
    reads = re.search(r"FROM\s+pg_(?:locks|stat_activity)", text)
    own = r"\b(?:database|datname|usename|pid|transactionid) =|= ANY\(pg_blocking_pids"
    return bool(reads) and not re.search(own, text)


def kinds_in(source: str) -> Iterator[tuple[int, str]]:
    nodes = list(ast.walk(ast.parse(source)))
    polls, asserts, parts = (
        {id(one) for node in nodes if isinstance(node, kind) for one in ast.walk(node)}
        for kind in (ast.While, ast.Assert, ast.FormattedValue)
    )
    parts |= {id(one) for node in nodes if isinstance(node, ast.JoinedStr) for one in node.values}
    functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    bodies = [node.body for node in nodes if isinstance(node, functions)]
    later = {
        id(one)
        for body in bodies
        for part in (body if isinstance(body, list) else [body])
        for one in ast.walk(part)
    }
    timed: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Assign) and has_passed(node.value, timed):
            timed |= {one.id for one in node.targets if isinstance(one, ast.Name)}
    for node in nodes:
        is_text = isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in parts
        if is_text and is_of_all_databases(node):
            yield node.lineno, "neighbours"
        if isinstance(node, ast.Compare) and id(node) in asserts and is_bound(node, timed):
            yield node.lineno, "bound"
        if isinstance(node, ast.Call):
            name = name_of(node.func)
            reads_clock = name in NOWS or ast.unparse(node.func) == "time.time"
            if reads_clock and id(node) not in later:
                yield node.lineno, "import"
            given = {one.arg: one.value for one in node.keywords}
            limits = [given["timeout"]] if "timeout" in given else []
            limits += node.args[:1] if name in ("wait", "join", "result", "receive") else []
            if name in WAITS and any(is_number(one, 1) for one in limits):
                yield node.lineno, "wait"
            if ast.unparse(node.func) == "time.sleep" and id(node) not in polls:
                yield node.lineno, "sleep"
            if name == "approx" and "abs" in given and is_number(given["abs"], 0.1):
                yield node.lineno, "approx"


def test_no_test_decides_by_the_speed_of_the_machine() -> None:
    found = {
        f"{name}: {kind}": line
        for name, path in FILES.items()
        if not name.startswith(ACCOUNTS)
        for line, kind in kinds_in(path.read_text())
        if not (kind == "sleep" and name.startswith(OF_HANDLERS))
    }
    assert {one: line for one, line in found.items() if one not in ALLOWED} == {}
    assert ALLOWED.keys() - found.keys() == set()  # each exception is still needed


def test_no_test_has_a_time_limit_of_another_length() -> None:
    """That of pyproject.toml ends what hangs. A shorter one ends what is slow."""
    limited = [name for name, path in FILES.items() if "mark." + "timeout" in path.read_text()]
    assert limited == []


@pytest.mark.parametrize(
    ("source", "kinds"),
    [
        ("assert time.monotonic() - began < 30", ["bound"]),
        ("took = time.perf_counter() - began\nassert 5 > took", ["bound"]),
        ("assert time.monotonic() - began >= 0.2 < most", []),
        ("assert oldest() < time.monotonic() - began", []),
        ("process.wait(5)\nresult.get(timeout=5)\nthread.join(PATIENCE)", ["wait", "wait"]),
        ("job.wait(timeout=0.1)\nstep.using(timeout=60)", []),
        ("time.sleep(0.5)\nwhile not done:\n    time.sleep(0.01)", ["sleep"]),
        (
            "'SELECT 1 FROM pg_locks WHERE NOT granted'\n'FROM pg_locks WHERE pid = %s'",
            ["neighbours"],
        ),
        ("NOW = datetime.now(UTC)\ndef later(at=timezone.now()):\n    now()", ["import", "import"]),
        ("assert age == approx(90, abs=30)\nassert rank == approx(90, abs=1e-3)", ["approx"]),
    ],
)
def test_what_is_refused(source: str, kinds: list[str]) -> None:
    assert [kind for _, kind in kinds_in(source)] == kinds


OF_PLANS = {"analyze", "explain", "plan_nodes"}
ANY_TABLES = {
    "admin/operations/test_all_that_match.py": "which tables are read, by any index",
    "lifecycle/test_enqueueing_gated.py": "no table is read",
    "lifecycle/test_plans_partitions.py": "which partitions are read",
    "metrics/test_schedules.py": "schedules, of which one index has the due ones",
}  # whose plans do not follow from what other tests left


def looks_at_plans(source: str) -> bool:
    imports = [one for one in ast.walk(ast.parse(source)) if isinstance(one, ast.ImportFrom)]
    names = {each.name for one in imports if one.module == "tests.factories" for each in one.names}
    return bool(names & OF_PLANS)


def test_no_plan_follows_from_rows_that_other_tests_rolled_back() -> None:
    sources = {name: path.read_text() for name, path in FILES.items()}
    found = {
        name
        for name, source in sources.items()
        if not name.startswith(ACCOUNTS)
        and "from tests.factories import" in source
        and looks_at_plans(source)
        and not any(word in source for word in ("fresh_tables", "empty_tables()", "TRUNCATE"))
    }
    assert found == set(ANY_TABLES)


def recent_nevers(source: str) -> list[int]:
    """Lines that count from a time that may not be there, and take a number in its place. The
    clock began when the machine started, which may be a moment ago."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and isinstance(call := node.right, ast.Call)
        and name_of(call.func) == "get"
        and len(call.args) == 2
        and ast.unparse(call.args[1]).lstrip("-").replace(".", "").isdigit()
        and name_of(node.left) == "now"
    ]


def test_no_machine_is_too_young_for_a_throttle() -> None:
    package = TESTS.parent / "django_jobs"
    found = [
        f"{path.relative_to(package)}:{line}"
        for path in (*package.rglob("*.py"), *TESTS.rglob("*.py"))
        if re.search(r"now\s+-", source := path.read_text())  # to parse all takes seconds
        for line in recent_nevers(source)
    ]
    assert not found
    assert recent_nevers("if now - sent.get(queue, -1.0) < THROTTLE: pass") == [1]
    assert not recent_nevers("if now - sent.get(queue, float('-inf')) < THROTTLE: pass")
