"""The slots of a worker process, and the claimed jobs that wait for one."""
