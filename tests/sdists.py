"""Tests of packages that others wrote, from their source distributions."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest

BACKEND = """
import shutil
from email import message_from_string
from pathlib import Path


class Backend:
    def prepare_metadata_for_build_wheel(self, directory, settings=None):
        known = message_from_string(Path("PKG-INFO").read_text())
        name = known["Name"].replace("-", "_")
        to = Path(directory, f"{name}-{known['Version']}.dist-info")
        to.mkdir()
        shutil.copy("PKG-INFO", to / "METADATA")
        return to.name


__legacy__ = Backend()
prepare_metadata_for_build_wheel = __legacy__.prepare_metadata_for_build_wheel
"""
"""In place of setuptools, with which all of these packages are built: pip asks what it downloads
for its metadata, and would install setuptools for the answer, half of the CPU of the download."""


def downloaded(package: str, folder: str, request: pytest.FixtureRequest) -> Path:
    """The files below ``folder`` of the source distribution of ``package``, such as
    ``django==6.0``. Where no package index is reachable, the test is skipped; in CI it fails, or
    nobody would notice that it never runs."""
    try:
        return download_tests(package, folder, _cache(request))
    except subprocess.SubprocessError as error:
        problem = f"NOT RUN: the tests of {package} cannot be downloaded: {error}"
        problem = f"{problem} {getattr(error, 'stderr', '')}"
    if os.environ.get("CI"):
        pytest.fail(problem)
    pytest.skip(problem)


def _cache(request: pytest.FixtureRequest) -> Path:
    """pytest's, or one for this run, if its plugin is switched off."""
    cache = getattr(request.config, "cache", None)
    if cache is not None:
        return cast("Path", cache.mkdir("sdists"))
    factory: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
    directory = factory.getbasetemp() / "sdists"
    directory.mkdir(exist_ok=True)
    return directory


def download_tests(package: str, folder: str, cache: Path) -> Path:
    """The files below ``folder``, which are downloaded once, into ``cache``.

    Raises ``SubprocessError`` where no package index is reachable.
    """
    kept = cache / package.replace("==", "-")
    if not kept.is_dir():
        _download(package, folder, kept)
    return kept


def _download(package: str, folder: str, to: Path) -> None:
    with TemporaryDirectory(dir=to.parent) as place:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", place]
        # Only its tests are wanted, so it may be for a newer Python.
        only_source = ["--no-binary", ":all:", "--ignore-requires-python"]
        options = [*only_source, "--use-pep517", "--no-build-isolation", package]
        backend = Path(place, "path", "setuptools", "build_meta.py")
        backend.parent.mkdir(parents=True)
        backend.with_name("__init__.py").touch()
        backend.write_text(BACKEND)
        environment = {**os.environ, "PYTHONPATH": str(backend.parents[1])}
        # In development mode pip takes half as long again.
        environment.pop("PYTHONDEVMODE", None)
        subprocess.run(
            [*pip, *options], env=environment, check=True, capture_output=True, text=True
        )
        (archive,) = Path(place).glob("*.tar.gz")
        kept = Path(place, "kept")
        kept.mkdir()
        with tarfile.open(archive) as members:
            for member in members:
                _, _, name = member.name.partition(f"/{folder}/")
                if name and (content := members.extractfile(member)):
                    (kept / name).parent.mkdir(parents=True, exist_ok=True)
                    (kept / name).write_bytes(content.read())
        with suppress(OSError):  # another environment of tox was faster
            kept.rename(to)
