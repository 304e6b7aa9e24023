"""The supervisor and the processes that it starts, watches and replaces."""
