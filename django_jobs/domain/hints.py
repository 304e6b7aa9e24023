"""What was meant by a misspelt name, and what something that is called takes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from .payload import a_kind


class Explained(type):
    """A class that names what it takes if it is called with anything else."""

    if not TYPE_CHECKING:  # a type checker would accept every call

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().__call__(*args, **kwargs)
            except TypeError:
                signature = inspect.signature(cls.__init__)
                try:
                    signature.bind(None, *args, **kwargs)
                except TypeError as error:
                    takes = f"it takes {', '.join([*signature.parameters][1:])}"
                    end = getattr(cls, "INSTEAD", "")
                    raise TypeError(f"{cls.__name__}: {error}; {takes}{end}") from None
                raise


def did_you_mean(name: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> str:
    """``did you mean 'report' or 'reports'?``, or empty if no name is close. Ignores case."""
    quoted = [repr(near) for near in nearest(name, known, most=most, cutoff=cutoff)]
    return f"did you mean {' or '.join(quoted)}?" if quoted else ""


def hint(name: object, known: Iterable[str], listed: str = "", *, most: int = 1) -> str:
    """The end of a message about a name that nothing has, with what is ``listed``: ``; did you mean
    'report'? known are: report``. Empty without both."""
    text = " ".join(filter(None, (did_you_mean(str(name), known, most=most), listed)))
    return f"; {text}" if text else ""


def nearest(name: str, known: Iterable[str], *, most: int = 1, cutoff: float = 0.6) -> list[str]:
    """The names that are close, the closest first. Ignores case."""
    by_folded = {candidate.lower(): candidate for candidate in known}
    near = get_close_matches(name.lower(), by_folded, n=most, cutoff=cutoff)
    return [by_folded[folded] for folded in near]


def named(arguments: Sequence[str]) -> str:
    if len(arguments) == 1:
        return f"one argument, the {arguments[0]}"
    return f"{len(arguments)} arguments: {', '.join(arguments)}"


def why_not(function: Any, arguments: Sequence[str]) -> str:
    """Why it cannot be called with these arguments; "" if it may."""
    if not callable(function):
        return f"is {a_kind(function)}, which cannot be called"
    if inspect.iscoroutinefunction(function):
        return "is async; write a plain function"
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return f"does not take {named(arguments)}"
    except ValueError:  # a function of C has no signature
        pass
    return ""
