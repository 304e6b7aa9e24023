#!/usr/bin/env bash
# Celery: an eta without a time zone is in UTC, also if the app has another timezone: where the clock is behind
# UTC, a task that is due in an hour runs at once. A crontab of the same app is in its timezone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q celery==5.6.3 tzdata==2026.3
cat >"$folder/try.py" <<'PYTHON'
import time
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import celery
from celery.contrib.testing.worker import start_worker
from celery.schedules import crontab

app = celery.Celery("tried", broker="memory://", backend="cache+memory://")
app.conf.timezone = "America/Lima"  # five hours behind UTC, all year
ran = []


@app.task
def note(name):
    ran.append(name)


hour = timedelta(hours=1)
here = datetime.now(ZoneInfo("America/Lima"))
note.apply_async(["naive, in an hour"], eta=here.replace(tzinfo=None) + hour)
note.apply_async(["aware, in an hour"], eta=here + hour)
note.delay("now")
with start_worker(app, pool="solo", perform_ping_check=False):
    deadline = time.monotonic() + 30
    while len(ran) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(2)

noon = crontab(minute="0", hour="12", app=app)
due = noon.maybe_make_aware(datetime(2026, 6, 1, 17)).hour

print("celery", celery.__version__, "timezone", app.timezone)
print("ran at once:", sorted(ran))
print("a crontab sees 17:00 UTC as", due, "o'clock")
assert sorted(ran) == ["naive, in an hour", "now"], ran
assert due == 12
PYTHON
cd "$folder"
"$folder/venv/bin/python" "$folder/try.py"
