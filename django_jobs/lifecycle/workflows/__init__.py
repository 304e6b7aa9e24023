"""Runs of workflows.

| module | what it does |
|---|---|
| :mod:`.spawning` | Inserts the steps that a running job asks for |
| :mod:`.starting` | Inserts a run with its steps |
| :mod:`.results` | Reads how other steps of a run ended |
| :mod:`.restarting` | Starts failed steps again, with what was skipped because of them |
| :mod:`.stuck` | Finds runs that could never end |
"""
