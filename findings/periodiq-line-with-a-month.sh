#!/usr/bin/env bash
# periodiq, the scheduler of Dramatiq: a line with a month loses its first days there, up to the day of the month
# on which it looks, and one with a weekday too is due on other weekdays.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q periodiq==0.14.0 dramatiq==2.2.1 cronsim==2.8
cat >"$folder/try.py" <<'PYTHON'
from datetime import datetime
from importlib.metadata import version
from itertools import islice

import pendulum
from cronsim import CronSim
from periodiq import CronSpec

for name in ("periodiq", "pendulum", "cronsim"):
    print(name, version(name))
SEEN = {
    # The whole of March, seen from the middle of January: the first of March until the 14th are lost.
    "30 12 * 3 *": ["Sun 15 Mar 2026", "Mon 16 Mar 2026", "Tue 17 Mar 2026"],
    # The Thursdays of November: a Sunday, the last Thursday, and a Wednesday of the next year.
    "0 0 * 11 4": ["Sun 22 Nov 2026", "Thu 26 Nov 2026", "Wed 03 Nov 2027"],
}
RIGHT = {
    "30 12 * 3 *": ["Sun 01 Mar 2026", "Mon 02 Mar 2026", "Tue 03 Mar 2026"],
    "0 0 * 11 4": ["Thu 05 Nov 2026", "Thu 12 Nov 2026", "Thu 19 Nov 2026"],
}


def by_periodiq(line):
    spec, at = CronSpec.parse(line), pendulum.datetime(2026, 1, 15, 10)
    for _ in range(3):
        at = spec.next_valid_date(at)
        yield f"{at:%a %d %b %Y}"


for line, seen in SEEN.items():
    right = [f"{at:%a %d %b %Y}" for at in islice(CronSim(line, datetime(2026, 1, 15, 10)), 3)]
    found = list(by_periodiq(line))
    print(f"{line!r}: periodiq {found}; cronsim {right}")
    assert (found, right) == (seen, RIGHT[line])
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
