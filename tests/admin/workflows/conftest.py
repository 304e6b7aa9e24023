"""Workflows that are declared in one test."""

from tests.api.workflows.conftest import workflow

__all__ = ["workflow"]
