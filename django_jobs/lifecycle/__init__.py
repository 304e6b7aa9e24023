"""Every statement that changes a job; nothing else changes one.

enqueueing     writes a new job
bulk_insert    writes many at once, for enqueueing
notifying      tells idle workers that there may be something to do
promoting      scheduled -> ready, when due; and what a worker could do next
claiming       ready -> running: the only way in
settling       running -> what follows, with its run; or given back, if it has not begun
settling_rows  settles one by one where a batch is refused; ends dead what cannot be settled
workers        a worker's row: registered, renewed, ended
progress       what handlers report while they run
receipts       the answers of calls that are made once
reaping        settles what workers held whose lease ran out
signalling     tells the project, by signals, what was settled
pruning        finished -> gone, when the retention is over
schedules/     due times become jobs
operations/    what a person asks for, if the person may
"""
