"""Links from a job to other pages: templates of addresses, filled with quoted values."""

from __future__ import annotations

import re
from collections.abc import Callable
from string import Formatter
from typing import Any
from urllib.parse import quote, urlsplit

NAMES = ("job_id", "job_type", "queue", "tenant", "idempotency_key", "trace_id")
PAYLOAD = "payload."
FIELD = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
SERVER = re.compile(r"(?:https?://[^/{}?#\\\s]+(?=[/?#]|$)|/(?![/\\]))")
"""How an address begins: a server, of which no part is a field, or the root of this site."""


def is_safe(url: Any) -> bool:
    """Whether ``url`` is an address of HTTP or of this site, and runs no script."""
    if not isinstance(url, str) or not SERVER.match(url) or not url.isprintable() or " " in url:
        return False
    try:
        return urlsplit(url).username is None
    except ValueError:
        return False


def fields_of(template: str) -> list[str]:
    """The fields of a template. Raises ``ValueError`` if it cannot be one."""
    fields = []
    for _text, field, form, conversion in Formatter().parse(template):
        if field is None:
            continue
        if form or conversion or not FIELD.fullmatch(field):
            raise ValueError(f"{{{field}}} is no field")
        if field not in NAMES and not field.startswith(PAYLOAD):
            known = ", ".join(f"{{{name}}}" for name in NAMES)
            raise ValueError(f"there is no field {{{field}}}; known are: {known}, {{payload.name}}")
        fields.append(field)
    return fields


def link_problem(link: Any) -> str | None:
    if not (isinstance(link, dict) and link.keys() == {"label", "url"}):
        return f"a link is a dict with label and url, not {link!r}"
    if not (isinstance(link["label"], str) and link["label"].strip()):
        return f"a label is text, not {link['label']!r}"
    url = link["url"]
    if not is_safe(url):
        return f"a url begins with https://, http:// or /, and has no space, unlike {url!r}"
    try:
        fields_of(url)
    except ValueError as error:
        return f"in {url!r} {error}"
    return None


def filled(template: str, value_of: Callable[[str], Any]) -> str | None:
    """The address for one job; None if a value is missing, or is neither text nor a number."""
    values = {}
    for field in fields_of(template):
        value = value_of(field)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            return None
        text = str(value)
        if text in ("", ".", ".."):  # a browser would leave out a part of the path
            return None
        values[field] = quote(text, safe="")
    return "".join(
        text + (values[field] if field is not None else "")
        for text, field, _form, _conversion in Formatter().parse(template)
    )
