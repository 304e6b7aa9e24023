"""Runs of workflows.

| module | what it does |
|---|---|
| :mod:`.starting` | Inserts a run with its steps |
| :mod:`.stuck` | Finds runs that could never end |
"""
