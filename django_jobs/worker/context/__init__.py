"""The API of a handler for its current attempt."""
