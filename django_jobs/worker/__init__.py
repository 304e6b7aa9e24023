"""The process tree that runs jobs. Web processes import only ``context`` and what it imports."""
