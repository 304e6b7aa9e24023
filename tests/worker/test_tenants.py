"""The patterns of docs/tenants.md, with policies of PostgreSQL and a role that they bind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import connection, connections, transaction

from tests.app.models import Effect
from tests.factories import run_sql

from .handlers.threads import Handlers

POLICY = """
CREATE ROLE {role} NOBYPASSRLS;
ALTER TABLE app_effect ENABLE ROW LEVEL SECURITY;
CREATE POLICY of_tenant ON app_effect
    USING (job_id = nullif(current_setting('app.tenant', true), '')::bigint);
GRANT SELECT, INSERT, UPDATE, DELETE ON app_effect TO {role};
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role};
"""
NO_POLICY = """
DROP POLICY of_tenant ON app_effect;
ALTER TABLE app_effect DISABLE ROW LEVEL SECURITY;
DROP OWNED BY {role};
DROP ROLE {role};
"""


@pytest.fixture
def bound_handlers(transactional_db: None) -> Iterator[Handlers]:
    """Handlers that assume a role which sees rows of its tenant only."""
    role = f"app_of_{connection.settings_dict['NAME']}"
    run_sql(POLICY.format(role=role))
    Effect.objects.bulk_create(Effect(job_id=tenant, note=f"of {tenant}") for tenant in (1, 2))
    options = connections["default"].settings_dict["OPTIONS"]
    before = dict(options)
    options["assume_role"] = role
    handlers = Handlers()  # whose connections copy what is set now
    try:
        yield handlers
    finally:
        options.clear()
        options.update(before)
        handlers.close()
        run_sql(NO_POLICY.format(role=role))


@contextmanager
def tenant_in_transaction(tenant_id: int) -> Iterator[None]:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT set_config('app.tenant', %s, true)", [str(tenant_id)])
        yield


@contextmanager
def tenant_in_session(tenant_id: int) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('app.tenant', %s, false)", [str(tenant_id)])
    yield


def visible() -> list[str]:
    return sorted(Effect.objects.values_list("note", flat=True))


@pytest.mark.parametrize("tenant", [tenant_in_transaction, tenant_in_session])
def test_the_tenant_of_a_job_does_not_leak_into_the_next(
    bound_handlers: Handlers, tenant: Callable[[int], contextmanager[None]]
) -> None:
    def of_tenant(tenant_id: int) -> list[str]:
        with tenant(tenant_id):
            return visible()

    assert bound_handlers.run(visible) == []
    for tenant_id in (1, 2, 1):
        assert bound_handlers.run(lambda number=tenant_id: of_tenant(number)) == [f"of {tenant_id}"]
        assert bound_handlers.run(visible) == []


def test_the_transaction_form_keeps_the_session_as_it_is(bound_handlers: Handlers) -> None:
    def wrapper_after(tenant: Callable[[int], contextmanager[None]]) -> object:
        with tenant(1):
            visible()
        return connections["default"]

    first = bound_handlers.run(lambda: wrapper_after(tenant_in_transaction))
    assert bound_handlers.run(lambda: connections["default"]) is first
    bound_handlers.run(lambda: wrapper_after(tenant_in_session))
    assert bound_handlers.run(lambda: connections["default"]) is not first
