"""What a handler can ask about the run it is in, and report of it."""
