"""Reads results from the rows, and cancels."""
