"""Checks of numbers and fields, and the values that errors show."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from keras_elmo.utils.checks import check_fields, check_whole, is_number, is_whole, shorten


def test_whole_numbers():
    for value in (3, np.int64(3), 10**100):
        assert is_whole(value, 3) and not is_whole(value, 10**101)
    for value in (True, 3.0, "3", None, float("nan")):
        assert not is_whole(value)


def test_numbers():
    for value in (0.5, 3, np.float32(0.5)):
        assert is_number(value) and is_number(value, above=0) and not is_number(value, above=3)
    for value in (True, "3", None, float("nan"), float("inf"), 1j, 10**400):
        assert not is_number(value)


def test_check_whole_returns_an_int_or_raises():
    assert type(check_whole("Layer", "rows", np.int32(2))) is int
    expected = "^Layer expects rows to be a whole number, 1 or more. Received: rows=0$"
    with pytest.raises(ValueError, match=expected):
        check_whole("Layer", "rows", 0)
    with pytest.raises(ValueError, match="rows to be a whole number, 3 or more. Received: rows=2"):
        check_whole("Layer", "rows", 2, 3)


@dataclasses.dataclass(frozen=True)
class Sizes:
    rows: Any = 1
    columns: Any = 1
    rate: Any = 0.5

    def __post_init__(self):
        check_fields(
            self,
            [("rows columns", lambda x: is_whole(x, 1), "whole"), ("rate", is_number, "a number")],
        )


def test_check_fields_names_all_invalid_fields_and_converts_numpy_numbers():
    sizes = Sizes(np.int64(2), 3, np.float32(0.5))
    assert (type(sizes.rows), type(sizes.rate)) == (int, float)
    message = "^Sizes expects rows to be whole. Received: rows=0; expects rate to be a number. Rec"
    with pytest.raises(ValueError, match=message):
        Sizes(rows=0, rate="x")


def test_a_shown_value_is_short():
    assert shorten([1, "two"]) == "[1, 'two']"
    assert len(shorten("long" * 1000)) < 300
    assert len(shorten([["nested" * 100] * 100] * 100)) < 1100
