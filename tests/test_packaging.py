"""The wheel holds all that the package needs at run time, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from email import message_from_bytes
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "django_jobs"

LOAD = """
import django
from django.conf import settings
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql"}},
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django_jobs"],
)
django.setup()
import django_jobs
from django.db.migrations.loader import MigrationLoader
print(django_jobs.__file__)
print(sorted(name for app, name in MigrationLoader(None).disk_migrations if app == "django_jobs"))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (built,) = target.glob("*.whl")
    return built


def files_in(wheel: Path) -> set[str]:
    with ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources - files_in(wheel) == set()


@pytest.mark.parametrize(
    "part",
    [
        "django_jobs/py.typed",
        "django_jobs/migrations/0001_initial.py",
        "django_jobs/templates/",
        "django_jobs/static/",
    ],
)
def test_the_wheel_has(wheel: Path, part: str) -> None:
    assert any(name.startswith(part) for name in files_in(wheel))


def test_the_wheel_has_only_the_package_and_its_metadata(wheel: Path) -> None:
    tops = {name.split("/", 1)[0] for name in files_in(wheel)}
    (metadata,) = tops - {"django_jobs"}
    assert metadata.endswith(".dist-info")
    assert not [name for name in files_in(wheel) if "__pycache__" in name]


def test_the_metadata_names_the_distribution_and_its_licence(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(archive.read(name))
    assert metadata["Name"] == "django-jobs-postgres"
    assert metadata["License-Expression"] == "MIT"
    assert metadata["License-File"] == "LICENSE"


def test_the_package_loads_from_the_wheel_alone(wheel: Path, tmp_path: Path) -> None:
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    # "-P" and the directory: what lies around the tests must not stand in for what is missing.
    command = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{LOAD}"
    done = subprocess.run(
        [sys.executable, "-P", "-c", command],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    place, migrations = done.stdout.splitlines()
    assert Path(place).is_relative_to(tmp_path)
    assert "0001_initial" in migrations
