"""The recipes of docs/hooks.md do what the page says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import sentry_sdk
from django.db import connection
from django.utils import timezone, translation
from pytest_django import Settings
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from django_jobs import Discard, Snooze
from django_jobs.domain.outcomes import Failed, Snoozed, Succeeded
from django_jobs.models import Job
from tests.app.jobs import noop
from tests.documents.blocks import blocks_of
from tests.factories import declared, enqueue_and_claim
from tests.worker.attempts import Desk

pytestmark = pytest.mark.django_db(transaction=True)

SHOP = "shop_of_the_docs"


@pytest.fixture
def shop(settings: Settings) -> Iterator[ModuleType]:
    """The package ``shop`` of the page, under a name that is free, and without a hook in use."""
    settings.USE_I18N = True
    made: dict[str, ModuleType] = {"": ModuleType(SHOP), "systems": ModuleType(f"{SHOP}.systems")}
    made[""].__path__ = []
    made["systems"].flags = SimpleNamespace(is_on=lambda job_type: True)  # type: ignore[attr-defined]
    for name in ("tenants", "hooks"):
        module = made[name] = ModuleType(f"{SHOP}.{name}")
        module.__package__ = SHOP
    sys.modules.update({module.__name__: module for module in made.values()})
    for block in blocks_of("docs/hooks.md"):
        if block.file in ("shop/tenants.py", "shop/hooks.py"):
            module = made[block.file.removeprefix("shop/").removesuffix(".py")]
            exec(compile(block.body, str(block), "exec"), vars(module))
    yield made["hooks"]
    for module in made.values():
        del sys.modules[module.__name__]


@pytest.fixture
def use(shop: ModuleType, settings: Settings) -> Callable[..., None]:
    """Names hooks of the page in the setting."""

    def use(*names: str) -> None:
        paths = [f"{SHOP}.hooks.{name}" for name in names]
        settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "HOOKS": paths}

    return use


def test_a_job_runs_in_the_language_and_the_time_zone_of_its_enqueue(
    use: Callable[..., None], desk: Desk
) -> None:
    def note() -> list[str]:
        return [translation.get_language(), timezone.get_current_timezone_name()]

    use("locale")
    with declared(note, name="app.note") as job_type:
        with translation.override("fr"), timezone.override("Asia/Tokyo"):
            held = enqueue_and_claim(job_type)
        assert desk.make(held) == Succeeded(result='["fr","Asia/Tokyo"]')


def test_a_job_of_before_the_hook_runs_too(use: Callable[..., None], desk: Desk) -> None:
    held = enqueue_and_claim(noop)
    use("sentry", "tenant", "locale", "feature_flags")
    assert desk.make(held) == Succeeded()


def test_a_job_runs_as_the_tenant_of_its_enqueue(
    use: Callable[..., None], shop: ModuleType, desk: Desk
) -> None:
    def note() -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT current_setting('app.tenant')")
            return [shop.current_tenant.get(), cursor.fetchone()[0]]

    use("tenant")
    with declared(note, name="app.note") as job_type:
        token = shop.current_tenant.set("7")
        held = enqueue_and_claim(job_type)
        shop.current_tenant.reset(token)
        assert desk.make(held) == Succeeded(result='["7","7"]')
    assert shop.current_tenant.get() is None


def test_a_job_behind_a_feature_flag_is_snoozed(
    use: Callable[..., None], shop: ModuleType, desk: Desk
) -> None:
    use("feature_flags")
    held = enqueue_and_claim(noop)
    shop.flags.is_on = lambda job_type: job_type != "app.noop"
    assert desk.make(held) == Snoozed(seconds=300, reason="its feature is off")


# Sentry


class Kept(Transport):
    """Sends nothing, and keeps what was to be sent."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.sent: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.sent += [item.payload.json for item in envelope.items if item.payload.json]


@pytest.fixture
def sent(shop: ModuleType) -> Iterator[list[dict[str, Any]]]:
    """The events and transactions of Sentry."""
    with sentry_sdk.isolation_scope() as scope:
        client = sentry_sdk.Client(
            dsn="https://key@sentry.invalid/1",
            transport=Kept,
            traces_sample_rate=1.0,
            default_integrations=False,
            auto_enabling_integrations=False,
        )
        scope.set_client(client)
        yield client.transport.sent
        client.close()


def broken() -> None:
    raise LookupError("no such order")


def test_sentry_gets_the_error_with_the_trace_of_the_request(
    use: Callable[..., None], sent: list[dict[str, Any]], desk: Desk
) -> None:
    use("sentry", "locale")
    with declared(broken, name="app.broken") as job_type:
        with sentry_sdk.start_transaction(op="http.server", name="buy"):
            held = enqueue_and_claim(job_type)
        assert isinstance(desk.make(held), Failed)
    request, error, run = sent
    trace = request["contexts"]["trace"]
    (publish,) = request["spans"]
    assert (publish["op"], publish["description"]) == ("queue.publish", "app.broken")
    assert error["exception"]["values"][0]["value"] == "no such order"
    assert error["tags"] == {"job_type": "app.broken"}
    assert error["contexts"]["job"] == {"id": held.id, "queue": "default", "attempt": 1}
    assert run["transaction"] == "app.broken"
    assert run["contexts"]["trace"]["trace_id"] == trace["trace_id"]
    assert error["contexts"]["trace"]["trace_id"] == trace["trace_id"]
    assert run["contexts"]["trace"]["parent_span_id"] == publish["span_id"]
    assert Job.objects.get().headers["sentry-trace"].startswith(trace["trace_id"])


@pytest.mark.parametrize("fate", [Snooze(60), Discard("gone")])
def test_sentry_does_not_get_the_fate_that_a_handler_chooses(
    use: Callable[..., None], sent: list[dict[str, Any]], desk: Desk, fate: Exception
) -> None:
    def choose() -> None:
        raise fate

    use("sentry")
    with declared(choose, name="app.choose") as job_type:
        desk.make(enqueue_and_claim(job_type))
    assert [item["type"] for item in sent] == ["transaction"]


def test_sentry_gets_the_error_of_an_async_handler_and_of_another_hook(
    use: Callable[..., None], shop: ModuleType, sent: list[dict[str, Any]], desk: Desk
) -> None:
    async def abroken() -> None:
        raise LookupError("no such order")

    use("sentry", "feature_flags")
    with declared(abroken, name="app.abroken") as job_type:
        first, second = enqueue_and_claim(job_type), enqueue_and_claim(job_type)
        desk.make(first)
        del shop.flags.is_on
        desk.make(second)
    errors = [item["exception"]["values"][-1]["type"] for item in sent if "exception" in item]
    assert errors == ["LookupError", "HookError"]
