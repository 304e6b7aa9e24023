"""What is checked before a release: ``tox -e release``. Nothing is uploaded.

The wheel is installed in an empty environment, where a fresh project migrates, enqueues a job and
runs it. Version, changelog and tag have to agree.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql

ROOT = Path(__file__).resolve().parent.parent

SETTINGS = """
INSTALLED_APPS += ["django_jobs", "shop"]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.postgresql", **{database!r}}}}}
"""
JOBS = """
from django_jobs import job


@job
def add(a: int, b: int) -> int:
    return a + b
"""
ENQUEUE = "from shop.jobs import add; print(add.enqueue(2, b=3).status)"
LOOK = """
from django_jobs.models import Job, Run
job, = Job.objects.all()
assert (job.status, job.result) == ("succeeded", 5), (job.status, job.result)
assert Run.objects.get().outcome == "succeeded"
"""


def disagreements(
    version: str, changelog: str, tags: Sequence[str], others: Sequence[str]
) -> list[str]:
    """What contradicts ``version``. ``tags`` are those of this commit, ``others`` all others."""
    sections = dict(re.findall(r"^## \[(.+?)\](.*?)(?=^## |\Z)", changelog, re.M | re.S))
    problems = []
    if version not in sections:
        problems.append(f"CHANGELOG.md has no section [{version}]")
    elif not re.match(r" - \d{4}-\d\d-\d\d\n", sections[version]):
        problems.append(f"the section [{version}] of CHANGELOG.md has no date")
    own = f"v{version}"
    problems += [
        f"this commit has the tag {tag}, and the version is {version}" for tag in tags if tag != own
    ]
    if own in others:
        problems.append(f"{own} is the tag of another commit: raise the version")
    if own in tags and sections.get("Unreleased", "").strip():
        problems.append(f"this commit is {own}, and CHANGELOG.md has entries under [Unreleased]")
    return problems


def check_version() -> None:
    """Raise ``SystemExit`` if version, changelog and tag of this checkout contradict each other."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    here = _tags("--points-at", "HEAD")
    others = sorted(set(_tags()) - set(here))
    changelog = (ROOT / "CHANGELOG.md").read_text()
    problems = disagreements(version, changelog, here, others)
    if problems := problems + edited_migrations([*here, *others]):
        raise SystemExit("\n".join(problems))
    print(
        f"version {version}:", "tagged" if here else f"not tagged yet; the tag will be v{version}"
    )


def edited_migrations(tags: Sequence[str], root: Path = ROOT) -> list[str]:
    """The migrations of released versions that are not as they were released, with their tags."""
    changed = ("diff", "--name-only", "--no-renames", "--diff-filter=MD")
    files = ("--", "django_jobs/migrations/[0-9]*.py", "django_jobs/migrations/_*_function.py")
    return [
        f"{file} is not that of {tag}" for tag in tags for file in _git(root, *changed, tag, *files)
    ]


def _tags(*options: str) -> list[str]:
    """The tags of releases. A checkout without git has none."""
    return _git(ROOT, "tag", "--list", "v[0-9]*", *options)


def _git(root: Path, *arguments: str) -> list[str]:
    return subprocess.run(
        ["git", *arguments], cwd=root, text=True, capture_output=True
    ).stdout.split()


def check_wheel(wheel: Path) -> None:
    """Install the wheel where nothing else is, and run a job in a new project."""
    with tempfile.TemporaryDirectory() as directory, empty_database() as database:
        environment = Path(directory) / "venv"
        venv.create(environment, with_pip=True)
        python = str(environment / "bin" / "python")

        def run(*arguments: str) -> None:
            # Without PYTHONPATH: what lies around must not stand in for what is missing.
            kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "DJANGO_"))}
            subprocess.run([python, *arguments], cwd=directory, env=kept, check=True)

        run(
            "-m",
            "pip",
            "install",
            "-q",
            "--disable-pip-version-check",
            str(wheel),
            "psycopg[binary]",
        )
        run("-m", "pip", "check")
        run("-m", "django", "startproject", "mysite", ".")
        run("manage.py", "startapp", "shop")
        with (Path(directory) / "mysite" / "settings.py").open("a") as settings:
            settings.write(SETTINGS.format(database=database))
        (Path(directory) / "shop" / "jobs.py").write_text(JOBS)
        run("-W", "error", "manage.py", "migrate", "-v0")
        run("-W", "error", "manage.py", "shell", "-v0", "-c", ENQUEUE)
        run("-W", "error", "manage.py", "jobworker", "--burst")
        run("-W", "error", "manage.py", "shell", "-v0", "-c", LOOK)
    print(f"{wheel.name} works in an empty environment")


@contextmanager
def empty_database() -> Iterator[dict[str, str]]:
    """A database on ``DATABASE_URL``, or else on an embedded server that ends with the check."""
    with _server() as server:
        name = sql.Identifier(f"release_{os.getpid()}")
        given = psycopg.conninfo.conninfo_to_dict(server)
        keys = {"HOST": "host", "PORT": "port", "USER": "user", "PASSWORD": "password"}
        known = {key: str(given[option]) for key, option in keys.items() if given.get(option)}
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
            try:
                yield {**known, "NAME": f"release_{os.getpid()}"}
            finally:
                connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@contextmanager
def _server() -> Iterator[str]:
    if "DATABASE_URL" in os.environ:
        yield os.environ["DATABASE_URL"]
        return
    from testproject import embedded

    directory = embedded.data_directory(f"release-{os.getpid()}")
    try:
        yield embedded.start(directory, cleanup_mode=None).get_uri()
    finally:
        embedded.stop(directory)
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    check_version()
    (built,) = Path(sys.argv[1]).glob("*.whl")
    check_wheel(built)
