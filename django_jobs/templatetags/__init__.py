"""Template tags for the pages of the admin."""
