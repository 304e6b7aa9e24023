#!/usr/bin/env bash
# cron-validator, cron-converter, crontab and cronex: what a step counts from, and whether two fields of days
# must both match. One valid line, four sets of days.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q cron-validator==1.0.8 cron-converter==2.0.2 crontab==1.0.5 cronex==0.1.3.1
cat >"$folder/try.py" <<'PYTHON'
from datetime import datetime, timedelta, timezone
from importlib.metadata import version

from cron_converter import Cron
from cron_validator import CronValidator
from cronex import CronExpression
from crontab import CronTab

FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc)
DAYS = [FIRST + timedelta(days=number) for number in range(365)]


def validator(line):
    return sum(CronValidator.match_datetime(line, day) for day in DAYS)


def converter(line):
    schedule = Cron(line).schedule(FIRST - timedelta(minutes=1))
    return sum(1 for _ in iter(lambda: schedule.next().year, 2027))


def crontab(line):
    tab = CronTab(line)
    return sum(tab.test(day) for day in DAYS)


def cronex(line):
    expression = CronExpression(f"{line} x")
    return sum(expression.check_trigger((day.year, day.month, day.day, 0, 0)) for day in DAYS)


LIBRARIES = {
    "cron-validator": validator,
    "cron-converter": converter,
    "crontab": crontab,
    "cronex": cronex,
}
print(*(f"{name} {version(name)}" for name in LIBRARIES), sep=" · ")
expected = {
    "0 0 13 * 5": [3, 3, 3, 61],  # the 13th and Fridays: both, or one of the two
    "0 0 */2 * 1": [26, 26, 26, 212],  # in Vixie cron a star in front makes it both
    "0 0 */7 * *": [48, 59, 59, 59],  # days 7, 14, 21, 28; or 1, 8, 15, 22, 29
    "0 0 1 */5 *": [2, 3, 3, 3],  # months 5, 10; or 1, 6, 11
    "0 0 5/10 * *": [36, 12, 36, 36],  # days 5, 15, 25; or the 5th alone
}
found = {line: [int(count(line)) for count in LIBRARIES.values()] for line in expected}
for line, counts in found.items():
    print(f"{line:14}", *counts, "days of 2026")
assert found == expected, found
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
