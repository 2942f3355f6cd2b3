"""Check the character ids that ``ElmoLayer`` receives."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_elmo.config import BiLMConfig
from keras_elmo.layers.backend.tracing import is_eager
from keras_elmo.tokenizers.characters import CharacterTokenizer
from keras_elmo.utils.typing import Tensor

# For small dtypes, the largest number up to which the dtype represents every whole number. The
# other dtypes can represent every id.
_LARGEST_EXACT = {
    "bfloat16": 256,
    "float16": 2048,
    "bool": 1,
    "int8": 127,
    "uint8": 255,
    "int16": 32767,
    "uint16": 65535,
}
_ADVICE = (
    "CharacterTokenizer.from_preset(preset) makes them from tokens, for the preset of the biLM"
)


def check_inputs(inputs: Any, config: BiLMConfig) -> Tensor:
    """Check the inputs, and return them; convert lists to an array.

    It checks values in eager calls only.

    Raises:
        ValueError: If the inputs are not character ids of the biLM.
    """
    if hasattr(inputs, "to_tensor") or getattr(inputs, "ragged", False):
        raise ValueError(
            "ElmoLayer expects a dense tensor of character ids. Received: a ragged tensor. Pass "
            "ids.to_tensor()"
        )
    array = None
    if isinstance(inputs, np.ndarray | list | tuple):
        inputs = array = check_ids(inputs, config)
    check_shape(inputs.shape, config)
    _check_dtype(inputs.dtype, config)
    if isinstance(inputs, keras.KerasTensor):
        _check_producer(inputs, config)
    elif array is None and is_eager(inputs):
        array = check_ids(ops.convert_to_numpy(inputs), config)
    if array is not None:
        _check_rows(array, config)
    return inputs


def check_ids(ids: Any, config: BiLMConfig) -> np.ndarray:
    """Convert nested lists or an array to an array, or raise a ValueError for invalid ids."""
    try:
        ids = np.asarray(ids)
    except ValueError as error:
        raise ValueError(
            "ElmoLayer expects character ids in an array. Received: lists of unequal lengths. "
            f"{_ADVICE}"
        ) from error
    if ids.dtype.kind not in "iuf":
        raise ValueError(
            f"ElmoLayer expects character ids. Received: an array of dtype={ids.dtype}. {_ADVICE}"
        )
    for kind, values, largest in config.alphabet.id_ranges(ids):
        if values.size and not (values.min() >= 0 and values.max() <= largest):
            raise ValueError(
                f"ElmoLayer expects {kind} from 0 to {largest}. "
                f"Received: ids from {values.min()} to {values.max()}. {_ADVICE}"
            )
    if ids.dtype.kind == "f" and (ids != np.floor(ids)).any():
        raise ValueError(
            f"ElmoLayer expects whole character ids. Received: fractions in dtype={ids.dtype}. "
            f"{_ADVICE}"
        )
    return ids


def check_shape(shape: tuple, config: BiLMConfig) -> None:
    """Raise a ValueError if character ids cannot have this shape."""
    fewest = max(3, config.widest_filter) + config.alphabet.leading
    most = config.alphabet.row_length
    if len(shape) != 3 or shape[2] not in range(fewest, most + 1):
        raise ValueError(
            "ElmoLayer expects character ids of shape (batch, tokens, characters) with "
            f"{fewest} to {most} characters. Received: shape={tuple(shape)}. {_ADVICE}"
        )


def _check_dtype(dtype: Any, config: BiLMConfig) -> None:
    dtype = keras.backend.standardize_dtype(dtype)
    largest = _LARGEST_EXACT.get(dtype, config.alphabet.largest_id)
    if largest < config.alphabet.largest_id:
        raise ValueError(
            f"ElmoLayer expects a dtype for ids up to {config.alphabet.largest_id}. "
            f"Received: dtype={dtype}, which is exact up to {largest} only. Pass int32, or start "
            f'the model with keras.Input((None, {config.alphabet.row_length}), dtype="int32")'
        )


def _check_producer(inputs: keras.KerasTensor, config: BiLMConfig) -> None:
    """Raise a ValueError if the layer that returned the inputs makes no ids for this biLM."""
    producer: Any = getattr(getattr(inputs, "_keras_history", None), "operation", None)
    if isinstance(producer, CharacterTokenizer):
        if _characters_and_words(producer.alphabet) != _characters_and_words(config.alphabet):
            raise ValueError(
                "ElmoLayer expects character ids in the alphabet of its biLM. Received: ids of "
                f"{type(producer).__name__} {producer.name!r}, which has another alphabet. "
                f"{_ADVICE}"
            )
    elif "float" in inputs.dtype and getattr(producer, "weights", None):
        raise ValueError(
            "ElmoLayer expects character ids. Received: the features of "
            f"{type(producer).__name__} {producer.name!r}. The biLM has its own embedding of "
            f"characters. {_ADVICE}"
        )


def _characters_and_words(alphabet: Any) -> tuple | None:
    """Return the tables that map characters and words to ids; None for bytes."""
    points = alphabet.code_points
    return points and (points.characters, points.words)


def _check_rows(ids: np.ndarray, config: BiLMConfig) -> None:
    """Raise a ValueError if rows have another alphabet, or the padding is in front."""
    first = ids[..., config.alphabet.leading]
    # Each row begins with the begin marker, or has only zeros.
    wrong = first[(first != config.alphabet.begin) & ((first != 0) | ids.any(-1))]
    if wrong.size:
        raise ValueError(
            "ElmoLayer expects the characters of every token to begin with the id "
            f"{config.alphabet.begin}. Received: {wrong[0]}, an id of another alphabet. "
            f"{_ADVICE}"
        )
    # Look for a token in the sentences that begin with padding.
    if (first[:, :1] == 0).any() and (first[first[:, 0] == 0] != 0).any():
        raise ValueError(
            "ElmoLayer expects padding after the tokens of a sentence. Received: a sentence that "
            'begins with padding. Use pad_sequences(..., padding="post")'
        )
