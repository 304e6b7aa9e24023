"""Help for projects that come from other libraries."""
