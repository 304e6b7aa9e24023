"""Time zone tables of different ages on one host."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from django_jobs.doctor import schedules
from django_jobs.doctor.schedules import examine_zones
from django_jobs.models import Schedule
from tests.zones import TOWN, tables

from .finding import findings

pytestmark = pytest.mark.django_db

LA_PAZ, BOGOTA = "America/La_Paz", "America/Bogota"
"""Their clocks have never changed since 1993."""


def at_noon(zone: str, **fields: object) -> None:
    rule = {"cron": "0 12 * * *", "timezone": zone, **fields}
    Schedule.objects.create(name=f"noon in {zone}", job_type="app.noop", **rule)


def test_tables_that_agree_are_no_finding() -> None:
    assert not findings(examine_zones, "D315")
    for zone in (LA_PAZ, BOGOTA, "Asia/Kolkata", "UTC"):
        at_noon(zone)
    assert not findings(examine_zones, "D315")


def test_a_zone_that_the_package_has_otherwise_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    at_noon(LA_PAZ)
    at_noon(BOGOTA)
    monkeypatch.setattr(
        schedules,
        "_zone_of_package",
        lambda name: ZoneInfo("America/Caracas" if name == BOGOTA else name),
    )
    monkeypatch.setattr(schedules, "_version_of_package", lambda: "2031a")
    (one,) = findings(examine_zones, "D315")
    assert (one.facts["zones"], one.facts["package"]) == ([BOGOTA], [BOGOTA])
    assert (one.facts["server"], one.facts["package_version"]) == ([], "2031a")
    assert "'noon in America/Bogota'" in one.problem
    assert "the package tzdata (2031a) differ for America/Bogota." in one.problem


def test_a_zone_that_postgresql_has_otherwise_or_not_is_named(tmp_path: Path) -> None:
    at_noon(TOWN)
    at_noon(LA_PAZ)
    at_noon("Asia/Kolkata", enabled=False)
    at_noon("Mars/Olympus_Mons")
    with tables(tmp_path, timedelta(minutes=2)):
        (one,) = findings(examine_zones, "D315")
    assert (one.facts["zones"], one.facts["server"]) == ([TOWN], [TOWN])
    assert one.problem.endswith("those of PostgreSQL differ for Test/Town.")


def test_the_tables_of_the_package_are_read_if_it_is_installed() -> None:
    pytest.importorskip("tzdata")
    assert schedules._version_of_package()
    assert schedules._zone_of_package("Europe/Paris") is not None
    assert schedules._zone_of_package(TOWN) is None


def test_the_version_of_the_machine_is_that_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tables(tmp_path, timedelta()):
        (tmp_path / "tzdata.zi").write_text("# version 2025b\nR A 1916\n")
        assert schedules._version_of_machine() == "2025b"
        (tmp_path / "tzdata.zi").unlink()
        (tmp_path / "+VERSION").write_text("2024a\n")
        assert schedules._version_of_machine() == "2024a"
        assert schedules._used(TOWN, "2024a", "2026f") == "the machine's, 2024a"
    assert schedules._used(TOWN, "2024a", "2026f") == "those of the package tzdata, 2026f"
