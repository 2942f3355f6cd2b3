"""Check arguments and settings, and word the errors."""

import math
import numbers
import reprlib
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import numpy as np

# One entry for each kind of field: names, separated by spaces; a function that returns whether a
# value is valid; and what it expects, in words that follow "to be".
FieldTable = Sequence[tuple[str, Callable[[Any], bool], str]]


def invalid(expected: str, received: object, advice: str = "") -> ValueError:
    """Return the error for an invalid argument.

    Args:
        expected: str. The expectation, as in ``"CRF expects scores of 3 axes"``.
        received: object. The value that was received, as in ``"shape=(2, 3)"``.
        advice: str. Advice, if it is not obvious.

    Examples:
        >>> print(invalid("CRF expects scores of 3 axes", "shape=(2, 3)", "Add a batch axis"))
        CRF expects scores of 3 axes. Received: shape=(2, 3). Add a batch axis
    """
    return ValueError(". ".join(filter(None, (expected, f"Received: {received}", advice))))


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
        expected = f"{owner} expects {name} to be a whole number, {least} or more"
        raise invalid(expected, f"{name}={shorten(value)}")
    return int(value)


def check_fields(instance: object, table: FieldTable) -> None:
    """Check the fields of a frozen dataclass; convert NumPy numbers, which JSON cannot store.

    Raises:
        ValueError: If fields are invalid. The error names all of them.
    """
    problems = []
    for names, is_valid, expected in table:
        for name in names.split():
            value = getattr(instance, name)
            if isinstance(value, np.generic):
                value = value.item()
                object.__setattr__(instance, name, value)
            if not is_valid(value):
                expects = f"expects {name} to be {expected}"
                problems.append(str(invalid(expects, f"{name}={shorten(value)}")))
    if problems:
        raise ValueError(f"{type(instance).__name__} {'; '.join(problems)}")


def shorten(value: object) -> str:
    """Return the repr of a value, cut to a bounded length."""
    short = reprlib.Repr()
    short.maxlist = short.maxdict = 20
    short.maxstring = short.maxlong = short.maxother = 200
    text = short.repr(value)
    return text if len(text) <= 1000 else f"{text[:1000]}..."
