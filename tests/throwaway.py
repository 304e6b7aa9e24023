"""A project that a test makes, with a database that nobody has migrated yet."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from django.db import connection
from psycopg import sql

SETTINGS = """
SECRET_KEY = "of a test"
USE_TZ = True
ROOT_URLCONF = "shop.urls"
INSTALLED_APPS = [
    "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions",
    "django_jobs", "shop",
]
DATABASES = {"default": %r}
"""
FILES = {
    "shop/__init__.py": "",
    "shop/urls.py": "urlpatterns = []\n",
    "shop/models.py": (
        "from django.db import models\n\n\n"
        "class Order(models.Model):\n"
        "    number = models.IntegerField()\n\n"
        "    class Meta:\n"
        '        app_label = "shop"\n'
    ),
    "shop/jobs.py": (
        "from django_jobs import job, schedule\n\n\n"
        "@job\n"
        "def ship(number):\n"
        "    pass\n\n\n"
        "@job(max_attempts=1)\n"
        "def greet(name, fail=False):\n"
        "    if fail:\n"
        "        raise ValueError(name)\n"
        "    return name\n\n\n"
        'schedule("nightly", ship, payload={"number": 1}, cron="0 3 * * *")\n'
    ),
    "shop/migrations/__init__.py": "",
    "shop/migrations/0001_initial.py": (
        "from django.db import migrations, models\n\n\n"
        "class Migration(migrations.Migration):\n"
        "    operations = [\n"
        '        migrations.CreateModel("Order", [\n'
        '            ("id", models.BigAutoField(primary_key=True)),\n'
        '            ("number", models.IntegerField()),\n'
        "        ])\n"
        "    ]\n"
    ),
}

# Each argument is a command line of manage.py. All in one process: to start one takes a second.
COMMANDS = """
import shlex, sys
from django.core.management import execute_from_command_line
for line in sys.argv[1:]:
    execute_from_command_line(["manage.py", *shlex.split(line)])
"""


class Project:
    """A directory with a settings module and the app ``shop``."""

    def __init__(self, directory: Path, database: dict[str, Any]) -> None:
        self.directory = directory
        self.write("settings.py", SETTINGS % (database,))
        for name, text in FILES.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        """Write a file of the project."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def manage(self, *lines: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``manage.py`` once for each of ``lines``, until one fails."""
        return subprocess.run(
            [sys.executable, "-c", COMMANDS, *lines],
            cwd=self.directory,
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "settings", **environment},
            capture_output=True,
            text=True,
        )


@contextmanager
def fresh_database(options: str = "") -> Iterator[dict[str, Any]]:
    """An empty database of the tests' server, as an entry of ``DATABASES``; gone afterwards.

    ``options`` are those of ``CREATE DATABASE``.
    """
    name = f"fresh_{uuid.uuid4().hex[:12]}"
    known = ("ENGINE", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")
    create = sql.SQL("CREATE DATABASE {} " + options).format(sql.Identifier(name))
    with psycopg.connect(**connection.get_connection_params(), autocommit=True) as server:
        server.execute(create)
        try:
            yield {"NAME": name, **{key: connection.settings_dict[key] for key in known}}
        finally:
            server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
