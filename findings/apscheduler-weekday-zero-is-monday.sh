#!/usr/bin/env bash
# APScheduler: from_crontab reads weekday 0 as Monday, and both day fields have to match.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q APScheduler==3.11.0
cat >"$folder/try.py" <<'PYTHON'
from datetime import datetime, timezone
from importlib.metadata import version

from apscheduler.triggers.cron import CronTrigger


def due_in_2026(line):
    trigger = CronTrigger.from_crontab(line, timezone=timezone.utc)
    found, last, now = [], None, datetime(2026, 1, 1, tzinfo=timezone.utc)
    while (due := trigger.get_next_fire_time(last, now)) and due.year == 2026:
        found.append(due)
        last = now = due
    return found


days = {due.strftime("%A") for due in due_in_2026("0 9 * * 0")}
both = [due.strftime("%a %d %b") for due in due_in_2026("0 0 13 * fri")]
print("APScheduler", version("APScheduler"))
print("'0 9 * * 0' is due on", days)
print("'0 0 13 * fri' is due on", both)
assert days == {"Monday"}
assert both == ["Fri 13 Feb", "Fri 13 Mar", "Fri 13 Nov"]
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
