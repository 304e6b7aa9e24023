"""What a person asks for: the permission is checked where the statement is.

jobs         cancel, reprioritize, run now, replay; pause and resume queues; stop workers
schedules    pause, resume, run now, backfill
quarantines  block and unblock job types
"""
