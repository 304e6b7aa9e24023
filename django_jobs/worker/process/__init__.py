"""A worker process: claims jobs, hands them to the executor, settles them."""
