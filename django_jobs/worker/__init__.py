"""The process tree that runs jobs. Web processes import ``context`` alone, and what it needs.

supervisor/  signals, restarts, hard time limits; never a handler, a thread or a connection
heartbeat/   a process that renews leases, settles what a dead sibling held, does maintenance
process/     a worker process: claimer, settler, and what it has claimed
execution/   one attempt: executor threads, its outcome, a child that runs one job alone
timeouts/    the time limits of handlers, raised in threads and by signals
handlers/    what handlers find around them: clean connections, clean forks
context/     what a handler can ask about its run and report of it
ipc/         the shared scoreboard, and pipes between the processes

options, connections, statement_timeout, events, wakeup and memory serve all of them.
"""
