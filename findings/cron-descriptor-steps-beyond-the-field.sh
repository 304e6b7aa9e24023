#!/usr/bin/env bash
# cron-descriptor: of a step longer than its field it says an interval, and the line is due once in each round
# of the field. It also has words for minute 60, which is none.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q cron-descriptor==2.2.1 cronsim==2.8 croniter==7.0.0
cat >"$folder/try.py" <<'PYTHON'
from datetime import datetime, timezone
from importlib.metadata import version
from itertools import islice

from cron_descriptor import get_description
from croniter import croniter
from cronsim import CronSim

for name in ("cron-descriptor", "cronsim", "croniter"):
    print(name, version(name))
FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc)
SAID = {
    "*/90 * * * *": ("Every 90 minutes", {60}),
    "0 */36 * * *": ("Every 36 hours", {24 * 60}),
    "0 0 */40 * *": ("At 12:00 AM, every 40 days", {days * 24 * 60 for days in (28, 30, 31)}),
}


def gaps(times):
    """Minutes from each to the next."""
    return {(after - at).total_seconds() / 60 for at, after in zip(times, times[1:])}


for line, (said, apart) in SAID.items():
    one = gaps(list(islice(CronSim(line, FIRST), 12)))
    other = gaps(list(islice(croniter(line, FIRST).all_next(datetime), 12)))
    print(f"{line!r}: {get_description(line)!r}; minutes between its times: {sorted(one)}")
    assert get_description(line) == said and one == other == apart

print(f"'60 * * * *': {get_description('60 * * * *')!r}; croniter: {croniter.is_valid('60 * * * *')}")
assert get_description("60 * * * *") == "At 60 minutes past the hour"
assert not croniter.is_valid("60 * * * *")
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
