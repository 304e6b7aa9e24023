"""A person changes what a job, or one due time of a schedule, is asked to do.

edits        changes jobs that have not started, and dead ones, which are then replayed
occurrences  skips, moves and restores single due times
"""
