"""A person changes what a job is asked to do.

edits  changes jobs that have not started, and dead ones, which are then replayed
"""
