"""The process tree that runs jobs. Nothing here is imported by web processes but ``context``.

supervisor   signals, restarts, hard time limits; never a handler, a thread or a connection
heartbeat    a process that renews leases and settles what a dead sibling held
process      a worker process: claimer, executor threads, settler, wakeup
isolation    a child that runs one job alone
"""
