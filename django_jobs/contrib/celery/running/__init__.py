"""Runs a task as the handler of a job type."""
