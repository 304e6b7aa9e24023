#!/usr/bin/env bash
# Oban for Python: `oban start` looks for cron workers by text in all files below the working directory. It
# imports what has the words in a docstring; and its own script imports none, because the directory is
# not on Python's path: the dry run calls that valid, and ends with 0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for python in python3.14 python3.13 python3.12 python3; do # it needs 3.12
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 12))' 2>/dev/null && break
done
"$python" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q oban==0.7.0
mkdir "$folder/project"
cd "$folder/project"
cat >reports.py <<'PYTHON'
from oban import worker


@worker(queue="reports", cron="@daily")
class Daily:
    async def process(self, job):
        return None
PYTHON
cat >former.py <<'PYTHON'
"""What once had @job(cron="@daily"): nothing here uses Oban."""

print("former.py was run")
PYTHON
options=(start --dry-run --dsn postgresql://nobody@localhost/none --queues reports:1)
"$folder/venv/bin/oban" version 2>/dev/null | tail -1
echo "-- oban start --dry-run"
"$folder/venv/bin/oban" "${options[@]}" >"$folder/script" 2>&1
grep -E "imported|valid|No module|former.py was" "$folder/script" | sed 's/^.*oban.cli: //'
grep -q "Successfully imported 0/2 cron modules" "$folder/script"
grep -q "Dry run complete" "$folder/script"
echo "-- python -m oban start --dry-run"
"$folder/venv/bin/python" -m oban "${options[@]}" >"$folder/module" 2>&1
grep -E "imported|valid|former.py was" "$folder/module" | sed 's/^.*oban.cli: //'
grep -q "Successfully imported 2/2 cron modules" "$folder/module"
grep -q "former.py was run" "$folder/module"
