"""The time limits of handlers, raised in threads and by signals."""
