"""Answers probes over HTTP: whether the process tree lives, and whether it claims."""
