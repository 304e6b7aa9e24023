#!/usr/bin/env bash
# CronSim and crontab: the next time after a moment in the repeated hour of autumn lies before that moment.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q cronsim==2.8 crontab==1.0.5 tzdata==2025.2
cat >"$folder/try.py" <<'PYTHON'
from datetime import datetime, timedelta
from importlib.metadata import version
from zoneinfo import ZoneInfo

from cronsim import CronSim
from crontab import CronTab

BERLIN, UTC = ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")
NOW = datetime(2026, 10, 25, 2, 10, fold=1, tzinfo=BERLIN)  # 02:00 to 03:00 has passed once
LINE = "30 2 * * *"

print("cronsim", version("cronsim"), "· crontab", version("crontab"))
print(f"now                {NOW}, which is {NOW.astimezone(UTC):%H:%M} UTC; the line is {LINE!r}")
simulated = next(CronSim(LINE, NOW)).astimezone(UTC)
seconds = CronTab(LINE).next(now=NOW)
print(f"CronSim, next      {simulated:%H:%M} UTC, {(simulated - NOW).total_seconds():.0f} s from now")
print(f"crontab, seconds to wait   {seconds:.0f}")
assert simulated - NOW == timedelta(minutes=-40), simulated
assert seconds == -2400.0, seconds
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
