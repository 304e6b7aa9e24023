"""The pages of queues: the list, the live numbers of one, and the form of its settings."""
