"""What a handler promises is checked against the databases of its app."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from django_jobs.checks.project import check_delivery
from tests.factories import declared


class Elsewhere:
    """Writes the models of the tests' app to another database."""

    def db_for_write(self, model: type, **hints: object) -> str | None:
        return "reports" if model._meta.app_label == "app" else None  # type: ignore[attr-defined]


@pytest.fixture
def elsewhere(settings: Settings) -> None:
    settings.DATABASE_ROUTERS = [f"{__name__}.Elsewhere"]


def test_a_single_database_passes() -> None:
    assert check_delivery() == []


@pytest.mark.usefixtures("elsewhere")
def test_exactly_once_across_two_databases_is_refused() -> None:
    found = check_delivery()
    assert {message.id for message in found} == {"django_jobs.E011"}
    (message,) = [one for one in found if "'app.hold_in_transaction'" in one.msg]
    assert "app.Effect" in message.msg
    assert "the database 'reports', and its jobs are in 'default'" in message.msg
    assert "at_least_once" in str(message.hint)


@pytest.mark.usefixtures("elsewhere")
def test_other_deliveries_may_write_to_any_database() -> None:
    def handler() -> None: ...

    messages = "".join(message.msg for message in check_delivery())
    assert "'app.noop'" not in messages
    handler.__module__ = "django_jobs.jobs"  # an app whose models are the jobs themselves
    with declared(handler, name="app.fine", delivery="exactly_once"):
        assert "'app.fine'" not in "".join(message.msg for message in check_delivery())


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("module", ["somewhere.else", "django.contrib.messages.jobs"])
def test_an_app_without_models_is_free_too(module: str) -> None:
    def handler() -> None: ...

    handler.__module__ = module
    with declared(handler, name="app.fine", delivery="exactly_once"):
        assert "'app.fine'" not in "".join(message.msg for message in check_delivery())


def test_unreadable_settings_are_reported_by_their_own_check(settings: Settings) -> None:
    settings.DJANGO_JOBS = {"DATABASE": 7}
    assert check_delivery() == []
