"""What a user may see of a row.

errors  hides error messages and tracebacks
export  sends the rows of a list as a file
"""
