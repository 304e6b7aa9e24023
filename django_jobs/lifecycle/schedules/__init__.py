"""Due times become jobs.

firing   locks due schedules and writes their ticks and jobs
waiting  starts the next job of a schedule that runs one at a time
errors   marks schedules that cannot be fired, and pauses those whose jobs keep dying
"""
