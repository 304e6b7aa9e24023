"""The console in Debian's Chromium: each page, and the tasks of an operator."""
