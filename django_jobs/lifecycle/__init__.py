"""Every statement that changes a job; nothing else changes one.

job_columns    the columns of a job that inserts write and claims read, for all of these
enqueueing     inserts new jobs
bulk_insert    inserts many jobs by COPY, for enqueueing
backlog        counts the jobs of a queue, and the rate at which they run; what a full one drops
gate_limits    counts what waits at the gates with a limit, for backlog
unique_keys    inserts jobs whose key stays unique for a time
replacing      replaces the job that holds a key, if it has not started
notifying      wakes idle workers by NOTIFY
promoting      scheduled -> ready, when due; looks up what a worker could do next
claiming       ready -> running: the only way in
pausing        ready -> blocked: jobs that nobody claims give up the slots of their gates
known_types    the job types that running workers can run, for gates/, settling and pausing
settling       running -> what follows, with a run; gives back jobs that never started
settling_statements  the statements of settling
cancelling     cancels jobs that have not begun, and asks the others to stop
opening        waiting -> ready or cancelled: the steps after those that ended; ends runs
compensating   inserts the jobs that undo what succeeded of a failed run
step_insert    inserts the steps of a run by COPY; the columns that an opening step changes
settling_rows  settles row by row if a batch is refused; ends unsettleable jobs as dead
resource_outcomes  records failures of jobs that use a resource with a breaker
workers        registers, renews and ends a worker's row
progress       stores what handlers report, what they did once, and questions to them
stored_files   saves the files that jobs refer to, and deletes them after their jobs
waits          stores until when a handler sleeps, or waits for a signal
reaping        settles the jobs of workers that died or lost their lease
signalling     sends Django signals for settled attempts
run_totals     counts runs in the table of totals
backlog_samples  stores the backlogs of queues and the forecasts made of them
pruning        deletes succeeded and cancelled jobs after their retention
history        makes the partitions of finished jobs and of runs
dropping       drops one of them after its retention
archiving      reads a partition of the history for a file, and drops it
dead_letters   deletes dead jobs beyond their limits, after a signal
schedules/     turns due times into jobs
workflows/     starts runs of workflows
gates/         blocked -> ready: who goes through the gates, and what a conflict ends
editing/       changes jobs that have not started, and dead ones, as a person asks
scope          the queues and job types to which a user is limited
operations/    what operators ask for, with a check of their permission
"""
