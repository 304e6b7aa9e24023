"""Tests of other packages that cannot be downloaded are skipped, and fail in CI."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests import sdists


@pytest.mark.parametrize("ci", [False, True])
def test_tests_that_cannot_be_downloaded_are_skipped_and_fail_in_ci(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, ci: bool
) -> None:
    def download(*_: Any) -> None:
        raise subprocess.CalledProcessError(1, ["pip"], stderr="no index")

    monkeypatch.setattr(sdists, "download_tests", download)
    monkeypatch.setenv("CI", "true" if ci else "")
    outcome: Any = pytest.fail.Exception if ci else pytest.skip.Exception
    with pytest.raises(outcome, match=r"NOT RUN: the tests of nothing==1 cannot be .+ no index"):
        sdists.downloaded("nothing==1", "tests", request)
