"""Small faults, planted one at a time, that the tests have to find."""
