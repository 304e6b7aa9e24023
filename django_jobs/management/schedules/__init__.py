"""The actions of jobschedule."""
