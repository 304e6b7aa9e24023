#!/usr/bin/env bash
# pycron: lines of other crons that it takes without an error, and that match never or on other days.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pycron==3.3.0
cat >"$folder/try.py" <<'PYTHON'
from datetime import datetime, timedelta
from importlib.metadata import version

import pycron

DAYS = [datetime(2026, 1, 1) + timedelta(days=number) for number in range(365)]


def matches(line):
    return [day for day in DAYS if pycron.is_now(line, day)]


print("pycron", version("pycron"))
found = {}
for line, meant in {
    "0 0 * * 0": "Sundays",
    "0 0 * * 7": "Sundays",
    "0 0 * * 6-7": "weekends",
    "0 0 5/10 * *": "the 5th, 15th and 25th",
    "0 0 L * *": "the last day of each month",
    "0 0 13 * 5": "in Vixie cron the 13th and all Fridays",
}.items():
    found[line] = len(matches(line))
    print(f"{line:14} is due on {found[line]:3} days of 2026; meant: {meant}")
assert list(found.values()) == [52, 0, 52, 0, 0, 61], found
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
