"""A worker process: claims jobs, passes them to the executor, and settles them."""
