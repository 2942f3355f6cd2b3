"""Check the character ids that ``ElmoLayer`` receives."""

from typing import Any

import keras
import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.utils.typing import Tensor

# Dtypes that cannot represent all whole numbers, and the largest up to which they can.
_LARGEST = {
    "bfloat16": 256,
    "float16": 2048,
    "bool": 1,
    "int8": 127,
    "uint8": 255,
    "int16": 32767,
    "uint16": 65535,
}


def check_inputs(inputs: Any, config: BiLMConfig) -> Tensor:
    """Return the inputs, lists as an array.

    The values are checked in lists and arrays only: tensors may be on a device, or symbolic.

    Raises:
        ValueError: If the inputs are not character ids of the biLM.
    """
    if isinstance(inputs, np.ndarray | list | tuple):
        inputs = check_ids(inputs, config)
    check_shape(inputs.shape, config)
    _check_dtype(inputs.dtype, config)
    return inputs


def check_ids(ids: Any, config: BiLMConfig) -> np.ndarray:
    """Return nested lists or an array as an array; raise a ValueError for invalid ids."""
    try:
        ids = np.asarray(ids)
    except ValueError as error:
        raise ValueError(
            "ElmoLayer expects character ids in an array. Received: lists of unequal lengths. "
            "CharacterTokenizer makes ids from tokens"
        ) from error
    if ids.dtype.kind not in "iuf":
        raise ValueError(
            "ElmoLayer expects character ids. Received: an array of "
            f"dtype={ids.dtype}. CharacterTokenizer makes them from tokens"
        )
    for kind, some, most in config.alphabet.id_ranges(ids):
        if some.size and not (some.min() >= 0 and some.max() <= most):
            raise ValueError(
                f"ElmoLayer expects {kind} from 0 to {most}. "
                f"Received: ids from {some.min()} to {some.max()}. CharacterTokenizer makes them"
            )
    if ids.dtype.kind == "f" and (ids != np.floor(ids)).any():
        raise ValueError(
            f"ElmoLayer expects whole character ids. Received: fractions in dtype={ids.dtype}"
        )
    return ids


def check_shape(shape: tuple, config: BiLMConfig) -> None:
    """Raise a ValueError if character ids cannot have this shape."""
    fewest = max(3, config.widest_filter) + config.alphabet.leading
    most = config.alphabet.row_length
    if len(shape) != 3 or shape[2] not in range(fewest, most + 1):
        raise ValueError(
            "ElmoLayer expects character ids of shape (batch, tokens, characters) with "
            f"{fewest} to {most} characters. Received: shape={tuple(shape)}. "
            "CharacterTokenizer makes them from tokens"
        )


def _check_dtype(dtype: Any, config: BiLMConfig) -> None:
    dtype = keras.backend.standardize_dtype(dtype)
    largest = _LARGEST.get(dtype, config.alphabet.largest_id)
    if largest < config.alphabet.largest_id:
        raise ValueError(
            f"ElmoLayer expects a dtype for ids up to {config.alphabet.largest_id}. "
            f"Received: dtype={dtype}, which is exact up to {largest} only. Pass int32, or start "
            f'the model with keras.Input((None, {config.alphabet.row_length}), dtype="int32")'
        )
