"""The output of jobworker for a person at a terminal, and its checks at the start."""
