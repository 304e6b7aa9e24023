"""Upgrades stored payloads to the version that the handler reads."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from ..domain.options import Upgrade
from ..domain.payload import a_kind
from ..exceptions import PayloadError


class UpgradeRaised(PayloadError):
    """An upgrade raised ``error``. ``brief`` is without its message, which may quote values."""

    def __init__(self, step: int, error: Exception) -> None:
        from ..domain.errors import ErrorReport

        report = ErrorReport.of(error)
        self.brief = f"the upgrade from version {step} raised {report.type}"
        super().__init__(f"the upgrade from version {step} raised {report.summary}")


def upgraded(
    payload: Any, version: int, wanted: int, upgrades: Mapping[int, Upgrade]
) -> dict[str, Any]:
    """``payload`` in the version ``wanted``, upgraded one version at a time.

    Never changes ``payload`` itself; without an upgrade it is returned as it is. Raises
    :class:`PayloadError` if it is not a dict or is newer than ``wanted``, or if an upgrade is
    missing, raises, or returns anything but a dict.
    """
    if not isinstance(payload, dict):
        raise PayloadError("it is not a dict of arguments")
    if version == wanted:
        return payload
    if version > wanted:
        raise PayloadError(f"version {version} is newer than the handler's, {wanted}")
    result = deepcopy(payload)
    for step in range(version, wanted):
        if step not in upgrades:
            raise PayloadError(f"there is no upgrade from version {step}")
        try:
            result = upgrades[step](result)
        except Exception as error:
            raise UpgradeRaised(step, error) from error
        if not isinstance(result, dict):
            raise PayloadError(f"the upgrade from version {step} gave {a_kind(result)}, not a dict")
    return result
