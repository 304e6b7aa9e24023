"""Due times become jobs."""
