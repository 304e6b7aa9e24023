"""The floors of the package: who may import whom, read from the imports themselves."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import django_jobs

PACKAGE = Path(__file__).resolve().parent.parent / "django_jobs"
LONG_FILE, LONGEST_FILE = 400, 600

FLOORS: dict[str, int] = {
    "domain": 0,
    "conf": 1,
    "exceptions": 1,
    "separators": 1,
    "signals": 1,
    "registry": 1,
    "routers": 2,
    "logs": 2,
    "models": 2,
    "lifecycle": 3,
    "api": 4,
    "worker": 5,
    "maintenance": 5,
    "metrics": 5,
    "why": 5,
    "checks": 6,
    "doctor": 6,
    "testing": 6,
    "backend": 6,
    "management": 6,
    "admin": 7,
    "http": 8,
    "contrib": 7,
    "management.commands": 8,
    "templatetags": 8,
    "apps": 9,
}
"""The package's ``__init__`` is a table of public names and stands outside; migrations are
Django's. The commands stand above the rooms that they parse arguments for."""

BUDGETS = {
    ".": 931,
    "admin": 16_398,
    "api": 4_612,
    "backend": 1_065,
    "checks": 1_037,
    "contrib": 4_528,
    "doctor": 2_612,
    "domain": 5_227,
    "http": 413,
    "lifecycle": 13_304,
    "logs": 447,
    "maintenance": 1_525,
    "management": 3_788,
    "metrics": 3_210,
    "models": 3_418,
    "templatetags": 33,
    "testing": 1_628,
    "why": 1_786,
    "worker": 10_921,
}
"""Lines of each room, with its sub-rooms. They only fall, or the commit says why one rises."""

MOST_FILES = 9
"""Of a sub-room, besides its ``__init__``: what is seen at one glance."""

MAY_IMPORT_ITS_NEIGHBOUR = {("registry", "exceptions"): "an unknown name is one of its exceptions"}
"""Rooms of one floor do not know one another, but for these, and why."""


MAY_READ_THE_ENVIRONMENT = {
    "contrib.celery.checking.code": "does not, but finds tasks that change it",
    "management.commands.jobworker": "faults on purpose, for drills",
    "management.worker.beside_runserver": "how runserver marks its child process",
}


def modules() -> list[Path]:
    return sorted(
        path
        for path in PACKAGE.rglob("*.py")
        if "migrations" not in path.relative_to(PACKAGE).parts and path != PACKAGE / "__init__.py"
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


@cache
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


def room(name: str) -> str:
    """The longest part of a module's name that has a floor: ``management.commands`` is a room."""
    parts = name.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    found = next((one for one in names if one in FLOORS), None)
    assert found is not None, f"on which floor is {name}?"
    return found


def sub_room(name: str) -> str:
    """The folder of a module: ``worker.process`` for worker/process/claimer.py."""
    return name.rpartition(".")[0]


def floor(name: str) -> int:
    return FLOORS[room(name)]


def test_a_module_imports_only_from_lower_floors_or_its_room() -> None:
    assert not [
        f"{name} imports {imported}"
        for name, path in NAMES.items()
        for imported in imports(path)[0]
        if room(name) != room(imported)
        and (room(name), room(imported)) not in MAY_IMPORT_ITS_NEIGHBOUR
        and floor(name) <= floor(imported)
    ]


def circle_in(graph: dict[str, set[str]]) -> str:
    """The names of a circle, or nothing."""
    done: set[str] = set()

    def visit(name: str, way: tuple[str, ...]) -> str:
        if name in way:
            return " -> ".join((*way[way.index(name) :], name))
        if name not in done:
            for imported in sorted(graph.get(name, ())):
                if circle := visit(imported, (*way, name)):
                    return circle
            done.add(name)
        return ""

    return next((circle for name in graph if (circle := visit(name, ()))), "")


def test_the_files_of_a_room_import_each_other_in_no_circle() -> None:
    graph = {
        name: {one for one in imports(path)[0] if room(one) == room(name) and one != name}
        for name, path in NAMES.items()
    }
    assert not circle_in(graph)


def test_the_sub_rooms_of_a_room_import_each_other_in_no_circle() -> None:
    """The files of a room itself count as one of them: they are its ground floor. An ``__init__``
    is a table of contents and stands outside."""
    files = {name: path for name, path in NAMES.items() if path.name != "__init__.py"}
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        here = sub_room(name)
        near = {one for one in imports(path)[0] if one in files and room(one) == room(name)}
        graph.setdefault(here, set()).update({sub_room(one) for one in near} - {here})
    assert not circle_in(graph)


def test_a_sub_room_has_few_files() -> None:
    folders = [
        folder
        for folder in PACKAGE.glob("*/**/")
        if "migrations" not in folder.relative_to(PACKAGE).parts and any(folder.glob("*.py"))
    ]
    counts = {
        folder.relative_to(PACKAGE).as_posix(): len(
            [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        )
        for folder in folders
        if ".".join(folder.relative_to(PACKAGE).parts) not in FLOORS
    }
    assert counts
    assert not {folder: count for folder, count in counts.items() if count > MOST_FILES}


def test_the_ground_floor_needs_the_standard_library_only() -> None:
    strangers = {
        (name, other)
        for name, path in NAMES.items()
        if room(name) == "domain"
        for other in imports(path)[1] - set(sys.stdlib_module_names)
    }
    assert strangers == {("domain.cron", "croniter")}


def test_no_module_reads_the_environment_or_the_demos_packages() -> None:
    ours = {"environ", "testproject", "tests"}
    assert not [name for name, path in NAMES.items() if imports(path)[1] & ours]
    reading = {name for name, path in NAMES.items() if "os.environ" in path.read_text()}
    assert reading == set(MAY_READ_THE_ENVIRONMENT)


def lengths() -> dict[str, int]:
    return {name: len(path.read_text().splitlines()) for name, path in NAMES.items()}


def test_no_file_is_too_long() -> None:
    assert not {name: lines for name, lines in lengths().items() if lines > LONGEST_FILE}


def test_no_room_grows_beyond_its_budget() -> None:
    rooms: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        room_, *rest = path.relative_to(PACKAGE).parts
        if room_ != "migrations":
            rooms[room_ if rest else "."] += len(path.read_text().splitlines())
    assert not {name: lines for name, lines in rooms.items() if lines > BUDGETS[name]}


def test_a_command_parses_calls_and_prints() -> None:
    commands = {n: lines for n, lines in lengths().items() if n.startswith("management.commands.")}
    assert commands
    assert not {name: lines for name, lines in commands.items() if lines > 120}


def test_no_public_module_has_the_name_of_a_public_function() -> None:
    assert not set(django_jobs.__all__) & set(NAMES)


CHANGES_JOBS = re.compile(
    r"\b(?:update|insert\s+into|delete\s+from|merge\s+into|copy|truncate(?:\s+table)?)\s+"
    r"(?:only\s+)?\"?django_jobs_job(?:_live)?\b",
    re.IGNORECASE,
)
SAVES = re.compile(
    r"a?(?:save|create|delete|update|bulk_create|bulk_update|get_or_create|update_or_create)"
)
SAVES_ELSEWHERE = {
    "admin.base.actions": {"LogEntry.objects.create"},
    "admin.limits.limit_admin": {"obj.save"},
    "admin.queues.queue_admin": {"obj.save"},
    "admin.schedules.schedule_admin": {"obj.save", "schedule_operations.delete"},
    "api.schedules": {"Schedule.objects.using(alias).bulk_create", "row.save"},
    "api.sql_defaults": {"known.bulk_create", "known.exclude(name__in=names).delete"},
    "api.workflows.definitions": {
        "ours.filter(~HAS_RUNS).update",
        "rows.bulk_create",
    },
    "contrib.celery.beat.importing": {
        *("gone.save", "known.save", "made.save", "schedule.save"),
        *("rows.filter(name=FOLLOWING).update", "rows.filter(pk=schedule.pk).update"),
        "Schedule.objects.using(conf().database).filter(pk=known.pk).update",
    },
    "maintenance.bulk_operations": {"LogEntry.objects.create"},
    "testing.crashing": {"over.update"},
    "models.named_row": {"self.using(alias).bulk_create", "super().save"},
    "models.querysets": {"super().delete", "super().update"},
    "models.schedule": {"super().delete", "super().save"},
    "management.roles": {"Group.objects.using(alias).create"},
}
"""What saves a row through the ORM outside of the lifecycle, by module. None of them is a job."""


def saves(source: str) -> set[str]:
    """What a module calls to save rows. A dict and a set have an ``update`` too, by position."""
    return {
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and SAVES.fullmatch(node.func.attr)
        and not (node.func.attr == "update" and node.args)
    }


def test_only_the_lifecycle_changes_jobs() -> None:
    """Neither by SQL nor through the ORM; the demo and the tests are free."""
    elsewhere = {name: path for name, path in NAMES.items() if room(name) != "lifecycle"}
    by_sql = [name for name, path in elsewhere.items() if CHANGES_JOBS.search(path.read_text())]
    assert by_sql == []
    by_orm = {name: saves(path.read_text()) for name, path in elsewhere.items()}
    assert {name: found for name, found in by_orm.items() if found} == SAVES_ELSEWHERE


@pytest.mark.parametrize(
    "source",
    [
        "Job.objects.filter(pk=1).update(status='dead')",
        "DeadLetter.objects.all().delete()",
        "job.save(update_fields=['status'])",
        "await Job.objects.acreate()",
    ],
)
def test_a_save_is_found(source: str) -> None:
    assert saves(f"async def save(): {source}")


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE django_jobs_job SET",
        "update only django_jobs_job",
        'DELETE  FROM "django_jobs_job"',
        "INSERT INTO\n django_jobs_job (id)",
        "COPY django_jobs_job (id) FROM STDIN",
        "COPY django_jobs_job_live (id) FROM STDIN",
    ],
)
def test_sql_that_changes_jobs_is_found(sql: str) -> None:
    assert CHANGES_JOBS.search(sql)
    assert not CHANGES_JOBS.search("UPDATE django_jobs_job_archive SET status = 'ready'")


@pytest.mark.parametrize(
    "name", ["api", "lifecycle", "lifecycle.operations", "lifecycle.schedules"]
)
def test_a_table_of_contents_lists_each_module(name: str) -> None:
    folder = PACKAGE.joinpath(*name.split("."))
    there = {path.stem for path in folder.iterdir() if not path.name.startswith("__")}
    contents = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    assert there <= set(re.findall(r"\w+", contents))
    assert set(re.findall(r"^(\w+)/?  +", contents, re.MULTILINE)) <= there


PAGE = PACKAGE.parent / "docs" / "architecture.md"


def tree_of_the_page() -> set[str]:
    """The modules that the page lists as today's."""
    block = PAGE.read_text().rsplit("```text\n", 1)[1].split("```", 1)[0]
    found: set[str] = set()
    folder = ""
    for word in block.split():
        if word.endswith("/"):
            folder = word.removeprefix("./").replace("/", ".")
        else:
            found.add(f"{folder}{word}")
    return found


def test_the_page_on_architecture_gives_each_room_its_floor() -> None:
    rows = re.findall(r"^\| (\d+) \| `([\w.]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert {name: int(number) for number, name in rows} == FLOORS


def test_the_page_on_architecture_names_each_sub_room() -> None:
    rooms = {sub_room(name) for name in NAMES if NAMES[name].name != "__init__.py"}
    named = re.findall(r"^\| `([\w/]+)/` \|", PAGE.read_text(), re.MULTILINE)
    assert {one for one in rooms if one and one not in FLOORS} == {
        name.replace("/", ".") for name in named if name != "migrations"
    }


def test_the_page_on_architecture_says_why_a_file_is_long() -> None:
    table = PAGE.read_text().split("## Long files and full rooms")[1].split("\n## ")[0]
    long = {
        path.relative_to(PACKAGE).as_posix()
        for path in NAMES.values()
        if len(path.read_text().splitlines()) > LONG_FILE
    }
    assert long == set(re.findall(r"^\| `([\w/]+\.py)` \|", table, re.MULTILINE))


def test_the_page_on_architecture_lists_each_module() -> None:
    files = {name for name, path in NAMES.items() if path.name != "__init__.py"}
    assert tree_of_the_page() == files


def test_each_path_on_the_page_on_architecture_exists() -> None:
    paths = set(re.findall(r"`([\w/]+(?:\.(?:py|md|html)|/))`", PAGE.read_text()))
    assert len(paths) > 50
    assert {
        one for one in paths if not any((top / one).exists() for top in (PACKAGE, PACKAGE.parent))
    } == set()


def test_each_function_on_the_architecture_page_is_in_its_file() -> None:
    """A file that was named just before: of the same row, or of the same item of a list."""
    wrong = []
    for line in re.split(r"\n(?=[|\-\d])", PAGE.read_text()):
        sources = [
            path.read_text()
            for name in re.findall(r"`([\w/]+\.py)`", line)
            if (path := PACKAGE / name).exists()
        ]
        for function in re.findall(r"`(\w+)\(\)`", line):
            if sources and not any(f"def {function}(" in source for source in sources):
                wrong.append(function)
    assert wrong == []
