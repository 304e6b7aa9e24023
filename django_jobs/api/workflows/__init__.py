"""Declares workflows, chains and groups, and starts them."""
