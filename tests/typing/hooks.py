"""What type checkers find in hooks."""

from collections.abc import Iterator
from contextlib import contextmanager

from django_jobs import HookEvent


@contextmanager
def tenant(event: HookEvent) -> Iterator[None]:
    if event.kind == "enqueue":
        event.headers["tenant"] = "acme"
    assert event.payload is not None
    event.payload["order_id"] = 8  # E
    event.attempt = event.kinds  # E
    yield
