"""Due times become jobs.

firing   locks what is due and writes ticks and jobs
waiting  starts the next job of a schedule that runs one at a time
errors   schedules that cannot be fired, and why
"""
