"""Runs one test many times under load, for a test that fails by chance.

``python -m tests.again FILE::TEST --times 50 --load 4``
"""
