#!/usr/bin/env bash
# pyawscron: the next time of a line for day 30 or 31 is a ValueError when the month that comes next has no such
# day, where cron and EventBridge pass over it. Backwards the same line passes over it, and so does the nearest
# weekday (31W) in both directions.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pyawscron==1.0.7
cat >"$folder/try.py" <<'PYTHON'
from datetime import datetime, timezone
from importlib.metadata import version

from pyawscron import AWSCron


def following(line, after, step):
    found = []
    for _ in range(3):
        try:
            after = getattr(AWSCron(line).occurrence(after), step)()
        except ValueError as error:
            return [*found, f"ValueError: {error}"]
        found.append(f"{after:%Y-%m-%d}")
    return found


january, april = (datetime(2027, month, 15, tzinfo=timezone.utc) for month in (1, 4))
print("pyawscron", version("pyawscron"))
seen = {
    (line, step): following(line, begin, step)
    for line in ("0 9 30 * ? *", "0 9 31 * ? *", "0 9 31W * ? *")
    for step, begin in (("next", january), ("prev", april))
}
for (line, step), found in seen.items():
    print(line, step, found)
refused = "ValueError: day is out of range for month"
assert seen["0 9 30 * ? *", "next"] == ["2027-01-30", refused]
assert seen["0 9 31 * ? *", "next"] == ["2027-01-31", refused]
assert seen["0 9 30 * ? *", "prev"] == ["2027-03-30", "2027-01-30", "2026-12-30"]
assert seen["0 9 31 * ? *", "prev"] == ["2027-03-31", "2027-01-31", "2026-12-31"]
assert seen["0 9 31W * ? *", "next"] == ["2027-01-29", "2027-03-31", "2027-05-31"]
PYTHON
cd "$folder"
"$folder/venv/bin/python" "$folder/try.py"
