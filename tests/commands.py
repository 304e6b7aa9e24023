"""Management commands, as tests call them."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command


def printed(command: str, *arguments: object) -> str:
    """What a command prints."""
    out = StringIO()
    call_command(*command.split(), *map(str, arguments), stdout=out)
    return out.getvalue()


def refused(command: str, *arguments: object, match: str) -> str:
    """What a command prints before its error, which has to ``match``."""
    out = StringIO()
    with pytest.raises(CommandError, match=match):
        call_command(*command.split(), *map(str, arguments), stdout=out)
    return out.getvalue()
