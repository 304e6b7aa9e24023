"""The link that opens an issue about a failure: ``DJANGO_JOBS["ISSUE_URL"]``."""

from __future__ import annotations

from urllib.parse import quote

from ...conf import conf
from ...domain.errors import cut
from ...domain.run_log import without_assigned

LONGEST_TITLE = 120
LONGEST_BODY = 3_000
"""Characters before they are quoted. Sites refuse addresses of more than about 8,000."""


def masked(text: str) -> str:
    """The text without the values of secret names."""
    return without_assigned(text, conf().redact_keys)


def issue_url(title: str, lines: list[str]) -> str:
    """The address with title and body, secrets masked; empty without the setting."""
    template = conf().issue_url
    if not template:
        return ""
    values = {
        "{title}": cut(masked(title), LONGEST_TITLE),
        "{body}": cut(masked("\n".join(lines)), LONGEST_BODY),
    }
    for name, value in values.items():
        template = template.replace(name, quote(value, safe=""))
    return template
