"""One attempt: the call of a handler, what interrupts it, its outcome."""
