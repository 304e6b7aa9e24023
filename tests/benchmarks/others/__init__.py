"""Other queues at work, each as its own documentation sets it up: the section ``others``."""
