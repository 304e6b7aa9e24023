"""Stored payloads, from the version they were written in to the one that is read today."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from ..domain.errors import ErrorReport
from ..domain.payload import a_kind
from ..exceptions import PayloadError

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
"""Takes a payload of one version, gives it in the next."""


def upgraded(
    payload: Any, version: int, wanted: int, upgrades: Mapping[int, Upgrade]
) -> dict[str, Any]:
    """``payload`` in the version that is wanted, step by step; it stays as it is itself.

    Raises :class:`PayloadError` for one that is no dict or is newer, and where an upgrade is
    missing, raises or gives no dict.
    """
    if not isinstance(payload, dict):
        raise PayloadError("it is not a dict of arguments")
    if version == wanted:
        return payload
    if version > wanted:
        raise PayloadError(f"version {version} is newer than the handler's, {wanted}")
    found = deepcopy(payload)
    for step in range(version, wanted):
        if step not in upgrades:
            raise PayloadError(f"there is no upgrade from version {step}")
        try:
            found = upgrades[step](found)
        except Exception as error:
            summary = ErrorReport.of(error).summary
            raise PayloadError(f"the upgrade from version {step} raised {summary}") from error
        if not isinstance(found, dict):
            raise PayloadError(f"the upgrade from version {step} gave {a_kind(found)}, not a dict")
    return found
