"""Faults at exact places of the worker, for tests and drills."""
