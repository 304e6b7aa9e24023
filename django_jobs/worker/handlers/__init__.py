"""What handlers find around them: clean connections, and forks that start afresh."""
