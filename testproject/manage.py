#!/usr/bin/env python
"""The demo's command line."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    if not sys.argv[1:] or {"help", "version", "-h", "--help", "--version"} & {*sys.argv[1:]}:
        # Nothing is read then, so the embedded PostgreSQL need not start.
        os.environ.setdefault("DATABASE_URL", "postgresql:///none")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
