"""What all pages share: the base class, actions, filters, columns, counts."""
