#!/usr/bin/env bash
# python-crontab: frequency_per_year() of a line with a day of the month and a day of the week counts the days that
# are both, and schedule() of the same job gives those that are either, as cron runs it: 3 days a year, or 61.
# A line that is read and written again with the weekdays 0-7 has "0,*" there.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q python-crontab==3.4.0 croniter==7.0.0
cat >"$folder/try.py" <<'PYTHON'
from datetime import datetime
from importlib.metadata import version

from crontab import CronTab


def read(line):
    (job,) = CronTab(tab=f"{line} true\n")
    return job


def times(job, year):
    schedule, found = job.schedule(date_from=datetime(year, 1, 1)), []
    while (at := schedule.get_next()).year == year:
        found.append(at)
    return len(found)


print("python-crontab", version("python-crontab"), "croniter", version("croniter"))
for line, said, given in (
    ("0 9 1 * *", 12, 12),
    ("0 9 * * 1", 52, 52),
    ("0 9 1 * 1", 3, 61),
    ("0 9 1-7 * 1", 12, 124),
):
    job = read(line)
    found = job.frequency_per_year(2027), times(job, 2027)
    print(f"{line:12} a year: {found[0]} by frequency_per_year(), {found[1]} by schedule()")
    assert found == (said, given), line

written = read("0 9 * * 0-7").slices.render()
print("0 9 * * 0-7  is written as", written)
assert written == "0 9 * * 0,*"
PYTHON
cd "$folder"
"$folder/venv/bin/python" "$folder/try.py"
