"""What a person asks for: permission, statement and log entry in one place.

jobs         cancel, reprioritize, run now, replay; pause and resume queues; stop workers
schedules    pause, resume, run now, backfill
quarantines  block and release job types
"""
