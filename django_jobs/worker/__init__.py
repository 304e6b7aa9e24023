"""The process tree that runs jobs. Web processes import only ``context`` and what it imports.

supervisor/  signals, restarts, hard time limits; never a handler, a thread or a connection
heartbeat/   a process that renews leases, recovers crashed processes, and does maintenance
health/      a process that answers probes
process/     a worker process: claimer, settler, threads and loop
pools/       its slots, and the claimed jobs that wait for one
execution/   one attempt: the call of the handler, its outcome, an isolated child
timeouts/    the time limits of handlers, raised in threads and by signals
handlers/    the environment of handlers: clean connections, clean forks
context/     the API of a handler for its attempt
ipc/         the shared scoreboard, and pipes between the processes

options, poller, connections, statement_timeout, events, error_reports, wakeup and meters serve all.
"""
