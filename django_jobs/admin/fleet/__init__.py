"""What workers run, and which versions of the code they have."""
