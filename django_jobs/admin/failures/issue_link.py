"""The link that opens an issue about a failure: ``DJANGO_JOBS["ISSUE_URL"]``."""

from __future__ import annotations

from urllib.parse import quote

from ...conf import conf
from ...domain.errors import cut
from ..access.errors import without_secrets

LONGEST_TITLE = 120
LONGEST_BODY = 3_000
"""Characters before they are quoted. Sites refuse addresses of more than about 8,000."""


def issue_url(title: str, lines: list[str]) -> str:
    """The address with title and body, secrets masked; empty without the setting."""
    template = conf().issue_url
    if not template:
        return ""
    values = {
        "{title}": cut(without_secrets(title), LONGEST_TITLE),
        "{body}": cut(without_secrets("\n".join(lines)), LONGEST_BODY),
    }
    for name, value in values.items():
        template = template.replace(name, quote(value, safe=""))
    return template
