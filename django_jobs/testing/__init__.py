"""For tests and drills: faults at exact places."""
