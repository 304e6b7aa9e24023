"""What is sent to others: calls to a client at the end of its job, to addresses that are allowed
and signed as Standard Webhooks 1.0 has it; and alerts of situations."""

from __future__ import annotations

import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from urllib.parse import urlsplit

LONGEST_ADDRESS = 2_000
ADDRESS = re.compile(
    r"(?P<scheme>https?)://(?P<place>(?P<host>[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::[1-9]\d{0,4})?)"
    r"(?:[/?][!\"$-~]*)?",
    re.IGNORECASE | re.ASCII,  # of scheme and host: RFC 3986, section 6.2.2.1
)
PLACE = re.compile(r"\.?(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::[1-9]\d{0,4})?")
LOOPBACK = "localhost", "127.0.0.1", "[::1]"
SECRET = "whsec_"  # noqa: S105 — with this each secret begins


def secrets_for(address: str, hosts: Mapping[str, str]) -> list[bytes]:
    """The secrets that sign a call to this address. ``hosts`` has a text of them for each host, as
    the setting has it. Raises ``ValueError`` with the reason why it is not called."""
    parts = ADDRESS.fullmatch(address) if len(address) <= LONGEST_ADDRESS else None
    if parts is None:
        raise ValueError("is no address such as https://hooks.example.com/jobs")
    scheme, place, host = (parts[name].lower() for name in ("scheme", "place", "host"))
    if scheme == "http" and host not in LOOPBACK:
        raise ValueError("does not begin with https://")
    usual = {"https": ":443", "http": ":80"}[scheme]  # names the same server
    place = place.removesuffix(usual)
    allowed = [
        one
        for one in hosts
        for name in [one.removesuffix(usual)]
        if place == name or (name.startswith(".") and f".{place}".endswith(name))
    ]
    if not allowed:
        raise ValueError(f"has a host to which no calls are allowed: {place}")
    return [_key(secret) for secret in hosts[max(allowed, key=len)].split()]


def hosts_problem(hosts: Mapping[str, str]) -> str | None:
    for place, secrets in hosts.items():
        if not (isinstance(place, str) and PLACE.fullmatch(place)):
            return f"{place!r} is no host, such as hooks.example.com or .example.com"
        try:
            lengths = [len(_key(secret)) for secret in secrets.split()]
        except (AttributeError, ValueError):
            lengths = []
        if not lengths or not all(24 <= length <= 64 for length in lengths):
            return f"the secret of {place!r} is not {SECRET} and 24 to 64 bytes in base64"
    return None


def signed(id_: str, timestamp: int, body: bytes, secrets: list[bytes]) -> dict[str, str]:
    """The headers of a call, with a signature by each secret. ``timestamp`` is Unix time."""
    content = f"{id_}.{timestamp}.".encode() + body
    digests = [hmac.digest(secret, content, "sha256") for secret in secrets]
    return {
        "webhook-id": id_,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(f"v1,{b64encode(one).decode()}" for one in digests),
    }


def _key(secret: str) -> bytes:
    if not secret.startswith(SECRET):
        raise ValueError
    return b64decode(secret.removeprefix(SECRET), validate=True)


HOLD_SECONDS = {
    "dead_jobs": 0.0,
    "late_schedule": 120.0,
    "unserved_queue": 300.0,
    "failed_compensation": 0.0,
    "open_breaker": 120.0,
    "burning_objective": 120.0,
}
"""How long each situation has to last before it is sent: as ``for:`` of the alert rules."""
AT_MOST_PER_HOUR = 20
MAILTO = "mailto:"
WEB = ("https://", "http://")


def shown_target(to: str) -> str:
    """Where an alert is sent, without what may be secret: the path of a webhook often is."""
    if not to.startswith(WEB):
        return to.removeprefix(MAILTO)
    parts = urlsplit(to)
    return f"{parts.scheme}://{parts.hostname}/…"
