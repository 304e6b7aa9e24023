"""The floors of docs/design: who may import whom, read from the imports themselves."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import django_jobs

PACKAGE = Path(__file__).resolve().parent.parent / "django_jobs"
LONGEST_FILE = 400

FLOORS: dict[str, int] = {
    "domain": 0,
    "conf": 1,
    "exceptions": 1,
    "signals": 1,
    "registry": 1,
    "models": 2,
    "lifecycle": 3,
    "api": 4,
    "declarations": 4,
    "job_types": 4,
    "schedules": 4,
    "upgrading": 4,
    "workflows": 4,
    "worker": 5,
    "maintenance": 5,
    "metrics": 5,
    "admin": 6,
    "management": 6,
    "backend": 6,
    "testing": 6,
    "checks": 6,
    "delivery_checks": 6,
    "setting_rules": 6,
    "schedule_checks": 6,
    "apps": 6,
    "logs": 6,
}
"""The package's ``__init__`` is a table of public names and stands outside; migrations are
Django's."""

ROOMS = {"api": "desk", "declarations": "desk", "job_types": "desk", "schedules": "desk"} | {
    "upgrading": "desk",
    "checks": "checks",
    "delivery_checks": "checks",
    "schedule_checks": "checks",
    "setting_rules": "checks",
}
"""Modules that share a room without a folder: declaring a job type and asking for a job."""

MAY_IMPORT_ITS_NEIGHBOUR = {("registry", "exceptions"): "an unknown name is one of its exceptions"}
"""Rooms of one floor do not know one another, but for these, and why."""


MAY_READ_THE_ENVIRONMENT = {"management.commands.jobworker": "faults on purpose, for drills"}


def modules() -> list[Path]:
    return sorted(
        path
        for path in PACKAGE.rglob("*.py")
        if "migrations" not in path.parts and path != PACKAGE / "__init__.py"
    )


def name_of(path: Path) -> str:
    """``lifecycle.claiming`` for django_jobs/lifecycle/claiming.py."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {name_of(path): path for path in modules()}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def statements(node: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    """All imports, those inside functions too; what only a type checker reads is left out."""
    found: list[ast.Import | ast.ImportFrom] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            found.append(child)
        elif isinstance(child, ast.If) and is_type_checking(child):
            for other in child.orelse:
                found += statements(other)
        else:
            found += statements(child)
    return found


def imports(path: Path) -> tuple[set[str], set[str]]:
    """What a module imports: modules of the package, and top-level names of others."""
    own: set[str] = set()
    others: set[str] = set()
    here = path.relative_to(PACKAGE.parent).with_suffix("").parts[:-1]
    for node in statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        else:
            base = ".".join(here[: len(here) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            targets = [f"{module}.{alias.name}" for alias in node.names]
        for target in targets:
            package, _, rest = target.partition(".")
            if package != "django_jobs":
                others.add(package)
                continue
            while rest and rest not in NAMES:  # a name in a module, not a module
                rest = rest.rpartition(".")[0]
            if rest:
                own.add(rest)
    return own, others


def top(name: str) -> str:
    return name.split(".")[0]


def room(name: str) -> str:
    return ROOMS.get(top(name), top(name))


def floor(name: str) -> int:
    assert top(name) in FLOORS, f"on which floor is {top(name)}?"
    return FLOORS[top(name)]


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_module_imports_from_lower_floors_or_its_own_room_only(name: str) -> None:
    for imported in imports(NAMES[name])[0]:
        here, there = room(name), room(imported)
        if here == there or (here, there) in MAY_IMPORT_ITS_NEIGHBOUR:
            continue
        if here == "apps":  # Django's own exception: ready() runs when all is loaded
            continue
        if here == "management" and there == "logs":  # the worker's command connects the log lines
            continue
        assert floor(name) > floor(imported), f"{name} imports {imported}"


def test_the_files_of_a_room_import_each_other_in_no_circle() -> None:
    graph = {
        name: {one for one in imports(path)[0] if room(one) == room(name) and one != name}
        for name, path in NAMES.items()
    }
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> None:
        assert name not in way, " -> ".join((*way[way.index(name) :], name))
        if name in done:
            return
        for imported in graph.get(name, ()):
            visit(imported, (*way, name))
        done.add(name)

    for name in graph:
        visit(name, ())


@pytest.mark.parametrize("name", sorted(name for name in NAMES if room(name) == "domain"))
def test_the_ground_floor_needs_the_standard_library_only(name: str) -> None:
    allowed = {"croniter"} if name == "domain.cron" else set()
    strangers = imports(NAMES[name])[1] - set(sys.stdlib_module_names) - allowed
    assert not strangers


@pytest.mark.parametrize("name", sorted(NAMES))
def test_no_module_reads_the_environment_or_the_demos_packages(name: str) -> None:
    assert not imports(NAMES[name])[1] & {"environ", "testproject", "tests"}
    if name not in MAY_READ_THE_ENVIRONMENT:
        assert "os.environ" not in NAMES[name].read_text()


@pytest.mark.parametrize("name", sorted(NAMES))
def test_no_file_is_too_long(name: str) -> None:
    assert len(NAMES[name].read_text().splitlines()) <= LONGEST_FILE


@pytest.mark.parametrize(
    "name", sorted(name for name in NAMES if name.startswith("management.commands."))
)
def test_a_command_parses_calls_and_prints(name: str) -> None:
    assert len(NAMES[name].read_text().splitlines()) <= 120


def test_no_module_beside_them_bears_the_name_of_a_public_function() -> None:
    assert not set(django_jobs.__all__) & set(NAMES)


def test_only_the_lifecycle_changes_jobs() -> None:
    """No SQL and no save of jobs elsewhere; the demo and the tests are free."""
    for name, path in NAMES.items():
        if room(name) == "lifecycle":
            continue
        text = path.read_text().lower()
        for statement in (
            "update django_jobs_job",
            "insert into django_jobs_job",
            "delete from dj",
        ):
            assert statement not in text, f"{name}: {statement}"
