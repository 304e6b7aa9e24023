"""The environment of handlers: clean connections, and clean forks."""
