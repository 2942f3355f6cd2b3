"""Checks of numbers, and the values that errors show."""

import numpy as np

from keras_elmo.utils.checks import is_number, is_whole, shorten


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


def test_a_shown_value_is_short():
    assert shorten([1, "two"]) == "[1, 'two']"
    assert len(shorten("long" * 1000)) < 300
    assert len(shorten([["nested" * 100] * 100] * 100)) < 1100
