"""The pages of jobs and dead letters."""
