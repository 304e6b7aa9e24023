"""The check of the functions that the console calls."""

from __future__ import annotations

from typing import Any

import pytest

from django_jobs.checks.project import check_console

FUNCTION = "tests.admin.job_sections.test_links.by_function"
NOTHING: list[Any] = []


async def asynchronous(job: Any) -> None: ...


def without_arguments() -> None: ...


def problems(settings: Any, **values: Any) -> list[str]:
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, **values}
    return [f"{message.id} {message.msg}" for message in check_console()]


def test_functions_that_can_be_called_pass(settings: Any) -> None:
    assert problems(settings) == []
    assert problems(settings, LINKS=FUNCTION) == []


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("nowhere.links", "cannot be imported: ModuleNotFoundError"),
        (f"{__name__}.NOTHING", "is a list, which cannot be called"),
        (f"{__name__}.asynchronous", "is async; write a plain function"),
        (f"{__name__}.without_arguments", "does not take one argument"),
    ],
)
def test_other_functions_are_named(settings: Any, path: str, problem: str) -> None:
    (message,) = problems(settings, LINKS=path)
    assert message.startswith(f'django_jobs.E021 {path!r} in DJANGO_JOBS["LINKS"] {problem}')


def test_the_function_and_the_job_types_of_http_are_looked_at(settings: Any) -> None:
    good = {"job_types": ["app.add"], "authorize": "tests.http.test_views.by_token"}
    assert problems(settings, HTTP=good) == []
    bad = {"job_types": ["app.ad"], "authorize": FUNCTION}
    called, named = problems(settings, HTTP=bad)
    assert called.startswith(
        f'django_jobs.E021 {FUNCTION!r} in DJANGO_JOBS["HTTP"] does not take 4'
    )
    assert named.startswith("django_jobs.E022 ")
    assert "'app.ad'" in named
