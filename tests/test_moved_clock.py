"""The command that runs tests on another day."""

from __future__ import annotations

import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests import moved_clock

SCRIPT = "import time; time.sleep(0.01); print(time.time())"


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_process_with_a_moved_clock_sleeps_and_its_time_passes(tmp_path: Path) -> None:
    begin = datetime(2028, 2, 29, 23, 50, tzinfo=UTC)
    before = datetime.now(UTC)
    moved = moved_clock.environment(begin, tmp_path)
    run = [sys.executable, "-c", SCRIPT]
    printed = subprocess.run(run, env=moved, check=True, capture_output=True, text=True).stdout
    shown = datetime.fromtimestamp(float(printed), UTC)
    rounded = timedelta(seconds=1)
    assert begin - rounded <= shown <= begin + (datetime.now(UTC) - before) + rounded
