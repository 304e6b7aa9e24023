"""The exception that ends a handler when its worker has to stop."""

from __future__ import annotations


class StopHandler(BaseException):
    """Raised in a handler whose worker has no more time to drain."""
