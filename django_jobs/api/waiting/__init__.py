"""Wait until a job has ended.

waiter     Job.wait() and Job.await_end()
listener   one connection of a process, for all that wait in it
"""
