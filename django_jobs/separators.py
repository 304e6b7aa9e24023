"""Numbers with the separators of the reader's language: 12,345.6 in English, 12.345,6 in German."""

from __future__ import annotations

from django.utils.formats import get_format


def number_text(value: float, form: str = ",", *, more: bool = False) -> str:
    """A number, by a format of Python such as ``",.1f"``; ``10,000+`` if there are ``more``."""
    return localized(format(value, form)) + ("+" if more else "")


def localized(text: str) -> str:
    """A text whose commas and points are all separators of numbers."""
    if "," not in text and "." not in text:
        return text
    thousands, decimals = get_format("THOUSAND_SEPARATOR"), get_format("DECIMAL_SEPARATOR")
    return text.translate({ord(","): thousands, ord("."): decimals})
