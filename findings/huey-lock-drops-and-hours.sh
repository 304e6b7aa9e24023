#!/usr/bin/env bash
# huey: lock_task drops the task that finds the lock held, and crontab(hour=) is each minute of the hour.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q huey==3.5.4
cat >"$folder/try.py" <<'PYTHON'
import time
from datetime import datetime, timedelta

import huey
from huey import MemoryHuey, crontab

queue = MemoryHuey("tried", immediate=False)
ran = []


@queue.task()
@queue.lock_task("one at a time")
def work(number):
    ran.append(number)
    time.sleep(1.0)


for number in range(3):
    work(number)
consumer = queue.create_consumer(workers=3)
consumer.start()
deadline = time.monotonic() + 30
while len(queue) and time.monotonic() < deadline:
    time.sleep(0.1)
time.sleep(2.5)  # longer than two tasks, one after the other
consumer.stop(graceful=True)

day = [datetime(2026, 1, 1) + timedelta(minutes=minute) for minute in range(1440)]
at_three = sum(map(crontab(hour="3"), day))
year = [datetime(2026, 1, 1) + timedelta(days=number) for number in range(365)]
fridays = sum(map(crontab(minute="0", hour="0", day="13", day_of_week="5"), year))

print("huey", huey.__version__)
print(f"three tasks under one lock, three workers: {len(ran)} ran, {len(queue)} wait")
print(f"crontab(hour='3') is due {at_three} times a day")
print(f"crontab(day='13', day_of_week='5') is due {fridays} times in 2026: both have to match")
assert (len(ran), len(queue), at_three, fridays) == (1, 0, 60, 3)
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
