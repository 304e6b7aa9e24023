"""What a user may see of a row, on a page and in the export of a list."""
