"""Pure values and rules: no Django, no database, no clock of their own."""
