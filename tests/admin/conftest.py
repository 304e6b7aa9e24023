"""What the tests of the console share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from tests.factories import make_user

from .walking import Page


@pytest.fixture
def superuser(django_user_model: Any) -> Any:
    """Somebody who may do everything."""
    return django_user_model.objects.create_superuser("ada")


@pytest.fixture
def page(superuser: Any) -> Page:
    """The admin as the superuser sees it."""
    client = Client()
    client.force_login(superuser)
    return Page(client)


@pytest.fixture
def page_of() -> Callable[..., Page]:
    """The admin as a member of staff with these permissions sees it."""

    def page_of(*permissions: str, name: str = "olga") -> Page:
        client = Client()
        client.force_login(make_user(*permissions, name=name))
        return Page(client)

    return page_of


@pytest.fixture
def no_time_limit(settings: Any) -> None:
    """For tests that count the queries of a page. In the transaction of a test its time limit takes
    a savepoint and two statements more; outside of one it is one, as test_time_limit.py says."""
    settings.DJANGO_JOBS = {**settings.DJANGO_JOBS, "ADMIN_STATEMENT_TIMEOUT": None}
