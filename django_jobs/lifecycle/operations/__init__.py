"""What operators ask for. Each operation checks the actor's permission where its statement is.

jobs         cancel, reprioritize, run now, replay; pause and resume queues; drain workers
inspections  ask running jobs for their stack
schedules    pause, resume, run now, backfill
quarantines  block and unblock job types
workflows    cancel and retry runs; skip a step, or send it a signal
signals      send a job the data for which its handler waits
bulk         what is asked for all jobs that match, and the jobs of its next chunk
limits       pause and resume resources and tenants; open and close breakers
dead_letters dismiss dead jobs
"""
