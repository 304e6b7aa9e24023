"""What the system does right now, for people and for monitoring."""
