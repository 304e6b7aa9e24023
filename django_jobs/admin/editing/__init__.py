"""Forms that edit a job, or enqueue one by hand."""
