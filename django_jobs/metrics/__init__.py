"""The present state of queues, workers and schedules, for people and monitoring."""
