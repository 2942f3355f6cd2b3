"""Check arguments and settings: numbers, and how an error shows a value."""

import difflib
import math
import numbers
import reprlib
from collections.abc import Iterable
from typing import TypeGuard


def is_whole(value: object, least: int = 0) -> TypeGuard[int]:
    """Return whether a value is a whole number, at least ``least``, and not a bool."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        return False
    return int(value) >= least


def is_number(value: object, above: float | None = None) -> TypeGuard[float]:
    """Return whether a value is a finite real number, greater than ``above``, and not a bool."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        number = float(value)
    except OverflowError:  # a whole number beyond the largest float
        return False
    return math.isfinite(number) and (above is None or number > above)


def check_whole(owner: str, name: str, value: object, least: int = 1) -> int:
    """Return a whole number as an int, or raise a ``ValueError``.

    ``owner`` is the class or function that received the argument ``name``.
    """
    if not is_whole(value, least):
        raise ValueError(
            f"{owner} expects {name} to be a whole number, {least} or more. "
            f"Received: {name}={shorten(value)}"
        )
    return int(value)


def nearest_names(name: str, names: Iterable[str]) -> list[str]:
    """Return the names that are most similar to a misspelt one, at most three."""
    by_case = {known.lower(): known for known in names}
    return [by_case[n] for n in difflib.get_close_matches(name.lower(), by_case, 3, 0.6)]


def shorten(value: object) -> str:
    """Return the repr of a value, cut to a bounded length."""
    short = reprlib.Repr()
    short.maxlist = short.maxdict = 20
    short.maxstring = short.maxlong = short.maxother = 200
    text = short.repr(value)
    return text if len(text) <= 1000 else f"{text[:1000]}..."
