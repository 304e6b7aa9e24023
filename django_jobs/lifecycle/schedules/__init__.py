"""Due times become jobs.

due      looks up due schedules and locks them; marks those that cannot fire, and pauses those
         whose jobs keep dying; starts the next job of a schedule that runs one at a time
firing   writes their ticks, their jobs and their next due times
"""
