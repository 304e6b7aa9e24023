"""What the tests of the findings share."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from django_jobs.doctor.examination import EXAMINATIONS, diagnose
from django_jobs.doctor.findings import Diagnosis, Finding


def diagnosis_of(examine: Callable[[], Iterable[Finding]]) -> Diagnosis:
    """What one examination finds, made as by ``jobdoctor``."""
    return diagnose([one for one in EXAMINATIONS if one.examine == examine])


def findings(examine: Callable[[], Iterable[Finding]], number: str) -> list[Finding]:
    """The findings of one id."""
    diagnosis = diagnosis_of(examine)
    assert not diagnosis.not_examined
    return [one for one in diagnosis.findings if one.id == f"django_jobs.{number}"]
