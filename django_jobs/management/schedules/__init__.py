"""The verbs of jobschedule."""
