#!/usr/bin/env bash
# cron-converter: an hourly line is due twice at one moment in spring, and not for two hours in autumn.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q cron-converter==2.0.2 tzdata==2025.2
cat >"$folder/try.py" <<'PYTHON'
from datetime import datetime
from importlib.metadata import version
from zoneinfo import ZoneInfo

from cron_converter import Cron

BERLIN, UTC = ZoneInfo("Europe/Berlin"), ZoneInfo("UTC")


def due(line, start, times):
    schedule = Cron(line).schedule(start)
    return [schedule.next().astimezone(UTC) for _ in range(times)]


print("cron-converter", version("cron-converter"))
spring = due("0 * * * *", datetime(2026, 3, 29, 0, 30, tzinfo=BERLIN), 4)
autumn = due("0 * * * *", datetime(2026, 10, 25, 0, 30, tzinfo=BERLIN), 4)
for name, times in (("spring", spring), ("autumn", autumn)):
    print(f"'0 * * * *' in Berlin, {name}, in UTC:", *(f"{one:%H:%M}" for one in times))
assert spring[1] == spring[2], spring
assert (autumn[2] - autumn[1]).total_seconds() == 7200, autumn
missing = due("30 2 * * *", datetime(2026, 3, 29, 0, 30, tzinfo=BERLIN), 1)[0]
print(f"'30 2 * * *' on the day without 02:30 is due at {missing.astimezone(BERLIN):%H:%M}")
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
