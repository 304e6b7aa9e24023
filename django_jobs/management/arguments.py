"""Numbers as options of commands."""

from __future__ import annotations

import argparse


def positive(text: str) -> float:
    """A number above zero, for argparse."""
    number = float(text)
    if not 0 < number < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def seconds(text: str) -> float:
    """A number of seconds, 0 or more, for argparse."""
    return 0.0 if float(text) == 0 else positive(text)


def count(text: str) -> int:
    """A whole number above zero, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number
