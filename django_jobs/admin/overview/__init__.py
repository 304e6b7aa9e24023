"""The first page of the console: what is wrong, and how it goes."""
