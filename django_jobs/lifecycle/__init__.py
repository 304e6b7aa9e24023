"""Every statement that changes a job. One verb, one file; nothing else changes a job.

enqueueing   writes a new job
copying      writes many at once, for enqueueing
waking       tells idle workers that there may be something to do
surveying    looks at what a worker could do next; changes nothing
promoting    scheduled -> ready, when due
claiming     ready -> running: the only way in
settling     running -> anything: the only way out
salvaging    settles one by one where a batch holds a row that cannot be settled
renewing     a worker's row: registered, renewed, ended
reaping      settles what workers held whose lease ran out
announcing   tells the project, by signals, what was settled
pruning      finished -> gone, when the retention is over
operating    what a person asks for: cancel, reprioritize, run now, replay, pause, resume
"""
