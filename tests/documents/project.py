"""A project as ``django-admin startproject`` makes it, in which the blocks of a page are run."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path

import psycopg
from psycopg import sql

from tests import forking

from .blocks import ROOT, Block

SETTINGS = """
import json, os

from mysite.settings import *

for alias, database in DATABASES.items():
    database |= json.loads(os.environ["DOCUMENTS_DATABASE"])
    database["NAME"] += "" if alias == "default" else f"_{alias}"
"""
"""The page's own settings, on the server of the tests."""

PLAIN = re.compile(r"python manage\.py [^|&;<>()$`*?\[\]#~%{}\n]+")
"""A command that needs no shell."""
WRITES_CODE = {"makemigrations", "startapp"}

ROLE = re.compile(r"\b(CREATE ROLE|ALTER ROLE|TO) (\w+)")
"""A role that a page makes, or takes for granted."""


class Project:
    """Runs the blocks of one page, in a directory and on a database that are this page's alone."""

    def __init__(self, directory: Path, server: str, database: str) -> None:
        self.directory = directory
        self._server = server
        self.database = database
        self.session = ""
        self._seen: set[str] = set()
        self._roles: dict[str, None] = {}
        self._others: list[str] = []
        self._loaded: forking.Template | None = None

    # The blocks

    def run(self, block: Block) -> None:
        """Do what the block says."""
        try:
            match block.language:
                case "python":
                    self._python(block)
                case "console":
                    for command, output in block.commands:
                        self._shown(self.console(command), output)
                case "sql":
                    self.execute(block.body)
        except AssertionError as error:
            error.add_note(f"the block at {block}")
            raise

    def _python(self, block: Block) -> None:
        """Write it to its file; without one, type it into ``manage.py shell``."""
        if block.file is None:
            self.type(self.session + block.body)
            return
        assert (self.directory / block.file).parent.is_dir(), f"{block.file}: no such directory"
        # What startapp wrote there is a comment. The settings are the project's, and are added to.
        if block.file in self._seen or block.file.endswith("settings.py"):
            again = IN_PLACE if block.file.endswith("jobs.py") else ""
            self.add(block.file, f"\n\n{again}{block.body}")
        else:
            self.write(block.file, block.body)

    def write(self, file: str, text: str) -> None:
        """Make a file of the project; what a page shows of it later is added."""
        (self.directory / file).write_text(text)
        self._seen.add(file)
        self._forget_loaded()

    def add(self, file: str, text: str) -> None:
        """Add to a file of the project."""
        with (self.directory / file).open("a") as opened:
            opened.write(text)
        self._forget_loaded()

    def type(self, code: str) -> str:
        """Run code as ``manage.py shell`` does."""
        return self.command("python", "manage.py", "shell", "-v0", input=code)

    def console(self, command: str) -> str:
        """Run a line of a console block; returns what it printed."""
        for beginning, instead in INSTEAD.items():
            if command.startswith(beginning):
                return instead(self, command)
        if PLAIN.fullmatch(command):
            return self.command(*shlex.split(command))
        return self.command("sh", "-c", command)

    def _shown(self, printed: str, shown: str) -> None:
        """The page shows the same words; numbers, times and widths may be others."""
        for line in shown.splitlines():
            assert _words(line) in _words(printed), f"{line!r} is not in:\n{printed}"

    # The processes

    def command(self, *arguments: str, input: str = "", may_fail: bool = False) -> str:
        """Run a program in the project; returns what it printed. It has to succeed. How long it may
        take is the time-out of the test: a machine that others use may stand still for seconds."""
        code, printed = self._run(arguments, input)
        assert may_fail or code == 0, f"{' '.join(arguments)}:\n{input}\n{printed}"
        return printed

    def _run(self, arguments: tuple[str, ...], input: str) -> tuple[int, str]:
        manages = arguments[:2] == ("python", "manage.py") and arguments[2] not in WRITES_CODE
        if manages and forking.IS_POSSIBLE:
            with contextlib.suppress(EOFError):  # what cannot be loaded says why below
                return self._template().run([*arguments[2:]], input)
        self._forget_loaded()  # it may write a file
        done = subprocess.run(
            arguments,
            cwd=self.directory,
            env=self.environment(),
            input=input,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return done.returncode, done.stdout

    def _template(self) -> forking.Template:
        """The process that has loaded the project as its files are."""
        if self._loaded is None:
            self._loaded = forking.Template(self.directory, self.environment())
        return self._loaded

    def _forget_loaded(self) -> None:
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None

    def environment(self) -> dict[str, str]:
        """That of the page's processes."""
        others = ("DJANGO_", "PYTEST", "PYTHON")  # development mode takes half as long again
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(others)}
        there = (self.directory / "manage.py").exists()
        return {
            **inherited,
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
            "PYTHONWARNINGS": "error",
            "PYTHONUNBUFFERED": "1",
            "DOCUMENTS_DATABASE": json.dumps(self._connection()),
            "DJANGO_SUPERUSER_USERNAME": "ada",
            "DJANGO_SUPERUSER_EMAIL": "ada@example.com",
            "DJANGO_SUPERUSER_PASSWORD": "lovelace",
            **({"DJANGO_SETTINGS_MODULE": "settings_of_the_test"} if there else {}),
        }

    def _connection(self) -> dict[str, str]:
        given = psycopg.conninfo.conninfo_to_dict(self._server)
        keys = {"HOST": "host", "PORT": "port", "USER": "user", "PASSWORD": "password"}
        known = {key: str(given[name]) for key, name in keys.items() if given.get(name)}
        return {**known, "NAME": self.database}

    def _begin(self, command: str) -> str:
        printed = self.command("sh", "-c", command)
        made = self.directory if command.endswith(" .") else self.directory / "mysite"
        (made / "settings_of_the_test.py").write_text(SETTINGS)
        return printed

    def _enter(self, command: str) -> str:
        self.directory /= command.removeprefix("cd ")
        return ""

    def _work(self, command: str) -> str:
        """A worker that stops when nothing is ready. What a page sends for the next minute is due
        first: a worker has begun before the second of docs/celery.md's ``countdown=1`` was over."""
        self.fetch(
            "SELECT pg_sleep_until(max(available_at)) FROM django_jobs_job"
            " WHERE status = 'scheduled' AND available_at < now() + interval '5 s'"
        )
        return self.command(*command.split(), "--burst")

    def _serve(self, command: str) -> str:
        """A web server on any free port, until it serves."""
        server = subprocess.Popen(
            [*command.split(), "--noreload", "127.0.0.1:0"],
            cwd=self.directory,
            env=self.environment(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert server.stdout is not None
        printed = []
        with server, server.stdout:
            for line in server.stdout:
                printed.append(line)
                if "Quit the server" in line:
                    server.send_signal(signal.SIGINT)
        assert "Quit the server" in "".join(printed), "".join(printed)
        return "".join(printed)

    # The database

    def execute(self, statement: str) -> None:
        """Run SQL on the page's database. Roles are the server's, which may have others of these
        names: those of the page bear the id of this process, and go with the database."""
        statement = ROLE.sub(rf"\1 \2_{os.getpid()}", statement)
        for verb, role in ROLE.findall(statement):
            if verb == "TO" and role not in self._roles:
                self._on_the_server("CREATE ROLE {}", role)
            self._roles[role] = None
        with psycopg.connect(self._server, dbname=self.database, autocommit=True) as connection:
            connection.execute(statement.encode())

    def fetch(self, statement: str) -> list[tuple[object, ...]]:
        """The rows of a query on the page's database of jobs."""
        database = self._others[-1] if self._others else self.database
        with psycopg.connect(self._server, dbname=database) as connection:
            return connection.execute(statement.encode()).fetchall()

    def create_database(self, template: str = "template1") -> None:
        """Make it."""
        self._on_the_server("CREATE DATABASE {} TEMPLATE {}", self.database, template)

    def begin_as(self, other: Project) -> None:
        """Have all that the other project has, in files and in its database."""
        self.create_database(template=other.database)
        shutil.copytree(other.directory, self.directory, dirs_exist_ok=True)
        self._forget_loaded()

    def create_other(self, command: str) -> str:
        """Make the database of another alias, which has its name."""
        self._others.append(f"{self.database}_{command.removeprefix('createdb ')}")
        self._on_the_server("CREATE DATABASE {}", self._others[-1])
        return ""

    def drop_database(self) -> None:
        """Remove it, with whoever is connected."""
        self._forget_loaded()
        for database in (self.database, *self._others):
            self._on_the_server("DROP DATABASE IF EXISTS {} WITH (FORCE)", database)
        for role in self._roles:
            self._on_the_server("DROP ROLE {}", role)

    def _on_the_server(self, statement: str, *names: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


IN_PLACE = """
from django_jobs import registry as _registry
_registry._modules.clear()
"""
"""A reader puts a new version of a handler in the place of the former; here it comes behind."""


def _words(text: str) -> str:
    return " ".join(re.sub(r"\d+", "0", text).split())


def _installed(project: Project, command: str) -> str:
    """The environment of the tests was installed by such a command. What it names is there."""
    for name in re.findall(r"django-jobs-postgres|psycopg|django(?=>|$)", command):
        assert distribution(name), name
    return ""


def _options_exist(project: Project, command: str) -> str:
    """A test of this repository that takes minutes: its options are asked for."""
    module = "tests.benchmarks" if command.startswith("tox -e bench") else command.split()[2]
    arguments = (sys.executable, "-m", module, "--help")
    done = subprocess.run(arguments, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=True)
    for option in re.findall(r"--\w[\w-]*", command):
        assert option in done.stdout, f"{module} has no option {option}"
    return ""


def _made_already(project: Project, command: str) -> str:
    """The database of the page was made before it."""
    return ""


INSTEAD: dict[str, Callable[[Project, str], str]] = {
    "pip install": _installed,
    "python3 -m venv": _installed,  # .ci/run has these lines, see tests/test_docs.py
    "tox -e bench": _options_exist,
    "python -m tests.": _options_exist,
    "createdb jobs": Project.create_other,
    "createdb": _made_already,
    "django-admin startproject": Project._begin,
    "cd ": Project._enter,
    "python manage.py runserver": Project._serve,
    "python manage.py createsuperuser": lambda project, command: project.command(
        *command.split(), "--noinput"
    ),
    "python manage.py jobworker": Project._work,
}
"""What is run in place of a command that installs, asks, or runs until it is stopped."""
