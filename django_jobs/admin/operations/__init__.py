"""The pages of operations on all jobs that match, and of the replay plan."""
