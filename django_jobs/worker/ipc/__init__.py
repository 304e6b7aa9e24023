"""What the processes of a worker share: a scoreboard in memory, and pipes."""
