"""What the lists have in common: titles, filters as a row, bounded searches."""
