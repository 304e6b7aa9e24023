"""blocked -> ready: the gates of jobs."""
