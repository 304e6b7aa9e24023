"""What a handler or a call of it gave back, as it is stored."""

from __future__ import annotations

import json
from typing import Any

from ..conf import conf
from ..domain.errors import ErrorReport
from ..domain.payload import encode


def answer_text(value: Any, name: str) -> str:
    """``value`` as JSON text. The effect counts, not the answer: one that cannot be stored is
    replaced by a note rather than failing a handler that did its work."""
    try:
        return encode(value, max_bytes=conf().max_result_bytes, name=name)
    except Exception as error:  # also what a dict of the handler's own class raises
        return json.dumps({"not_stored": ErrorReport.of(error).message})
