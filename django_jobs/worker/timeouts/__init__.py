"""The time limits of handlers: counted, raised in threads, raised by signals."""
