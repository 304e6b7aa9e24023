"""What a user may see of a row.

errors  hides error messages and tracebacks
"""
