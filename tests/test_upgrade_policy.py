"""What ``docs/upgrading.md`` promises: how long a deprecated name stays, and that migrations do."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

import django_jobs
from tests.release import edited_migrations

PACKAGE = Path(django_jobs.__file__).parent
MESSAGE = re.compile(r"; use .+\. It is removed in django_jobs (\d+)\.0\.")


def broken_promises(source: str, major: int) -> list[str]:
    """What is wrong with the warnings in ``source`` for a release with this first number."""
    problems = []
    for call in ast.walk(ast.parse(source)):
        if not (isinstance(call, ast.Call) and ast.unparse(call.func).endswith("warn")):
            continue
        text = ast.unparse(call)
        if "RuntimeWarning" in text:  # of what a caller does now, as Django has it
            continue
        removal = MESSAGE.search(text)
        if "DeprecationWarning" not in text or removal is None:
            problems.append(f"{text} does not say what to use, and until when")
        elif int(removal[1]) <= major:
            problems.append(f"{text} is overdue")
    return problems


def test_each_deprecation_says_what_to_use_and_until_when() -> None:
    major = int(django_jobs.__version__.split(".")[0])
    sources = [path.read_text() for path in PACKAGE.rglob("*.py")]
    assert sources
    assert [problem for source in sources for problem in broken_promises(source, major)] == []


KEPT = 'warnings.warn("a is old; use b. It is removed in django_jobs 2.0.", DeprecationWarning, 2)'


@pytest.mark.parametrize(
    "source, major, problem",
    [
        (KEPT, 0, ""),
        (KEPT, 1, ""),
        (KEPT, 2, "is overdue"),
        (KEPT.replace("Deprecation", "Future"), 1, "does not say"),
        (KEPT.replace("; use b", ""), 1, "does not say"),
        (KEPT.replace("in django_jobs 2.0", "soon"), 1, "does not say"),
    ],
)
def test_a_deprecation_without_them_is_found(source: str, major: int, problem: str) -> None:
    found = broken_promises(source, major)
    assert len(found) == bool(problem)
    assert all(problem in text for text in found)


def test_a_released_migration_that_was_edited_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "django_jobs" / "migrations"
    folder.mkdir(parents=True)
    names = ("0001_initial.py", "0002_more.py", "_patience.py")
    for name in names:
        (folder / name).write_text("released")

    def git(*arguments: str) -> None:
        author = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", *author, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    git("add", ".")
    git("commit", "-m", "Release")
    git("tag", "v1.0.0")
    (folder / "0003_new.py").write_text("not released")
    (folder / "_patience.py").write_text("edited")
    assert edited_migrations(["v1.0.0"], tmp_path) == []
    (folder / names[0]).write_text("edited")
    (folder / names[1]).unlink()
    assert edited_migrations(["v1.0.0"], tmp_path) == [
        f"django_jobs/migrations/{name} is not that of v1.0.0" for name in names[:2]
    ]
