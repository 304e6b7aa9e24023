"""Communication between the processes of a worker: shared memory and pipes."""
