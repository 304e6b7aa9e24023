#!/usr/bin/env bash
# django-q2: a monthly schedule of the 31st moves to the 28th in its first February, and stays there.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q django-q2==1.11.1 'Django==5.2.*'
cat >"$folder/try.py" <<'PYTHON'
from datetime import UTC, datetime
from importlib.metadata import version

import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django_q"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    Q_CLUSTER={"orm": "default", "timeout": 60, "retry": 120},
    USE_TZ=True,
)
django.setup()

from django_q.models import Schedule  # noqa: E402 — models come after setup


def dates(kind, at, count):
    schedule = Schedule(func="tried", schedule_type=kind, next_run=at)
    for _ in range(count):
        schedule.next_run = schedule.calculate_next_run()
        yield f"{schedule.next_run:%Y-%m-%d}"


monthly = list(dates(Schedule.MONTHLY, datetime(2026, 12, 31, 9, tzinfo=UTC), 5))
yearly = list(dates(Schedule.YEARLY, datetime(2028, 2, 29, 9, tzinfo=UTC), 4))
print("django-q2", version("django-q2"), "Django", django.__version__)
print("monthly from 2026-12-31:", *monthly)
print("yearly from 2028-02-29:", *yearly)
assert monthly == ["2027-01-31", "2027-02-28", "2027-03-28", "2027-04-28", "2027-05-28"], monthly
assert yearly == ["2029-02-28", "2030-02-28", "2031-02-28", "2032-02-28"], yearly
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
