"""Check the character ids that ``ElmoLayer`` receives."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_elmo.config import BiLMConfig
from keras_elmo.layers.backend.eager import is_eager
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.typing import Tensor

# Smaller dtypes cannot represent the ids of every alphabet.
_DTYPES = ("int32", "int64", "uint32", "uint64", "float32", "float64")
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
        expected = "ElmoLayer expects a dense tensor of character ids"
        raise invalid(expected, "a ragged tensor", "Pass ids.to_tensor()")
    is_tensor = isinstance(inputs, keras.KerasTensor) or ops.is_tensor(inputs)
    if not is_tensor:
        try:
            inputs = np.asarray(inputs)
        except (TypeError, ValueError) as error:  # lists of unequal lengths; a tensor of Keras 2
            expected = "ElmoLayer expects character ids in an array"
            raise invalid(expected, f"{type(inputs)}: {error}", _ADVICE) from error
    dtype = keras.backend.standardize_dtype(inputs.dtype) if is_tensor else inputs.dtype.name
    if dtype not in _DTYPES:
        raise invalid(
            "ElmoLayer expects character ids as numbers of 32 or 64 bits",
            f"dtype={dtype}",
            "Pass int32, or start the model with "
            f'keras.Input((None, {config.alphabet.row_length}), dtype="int32"). {_ADVICE}',
        )
    fewest = max(3, config.widest_filter) + config.alphabet.leading
    most = config.alphabet.row_length
    if len(inputs.shape) != 3 or inputs.shape[2] not in range(fewest, most + 1):
        raise invalid(
            "ElmoLayer expects character ids of shape (batch, tokens, characters) with "
            f"{fewest} to {most} characters",
            f"shape={tuple(inputs.shape)}",
            _ADVICE,
        )
    if not is_tensor or is_eager(inputs):
        _check_ids(ops.convert_to_numpy(inputs), config)
    return inputs


def _check_ids(ids: np.ndarray, config: BiLMConfig) -> None:
    """Raise a ValueError for ids out of range, of another alphabet, or with padding in front."""
    if keras.backend.backend() == "torch" and ids.size and (ids == 1).all():
        return  # Keras passes ones to a model to find the shapes of its outputs.
    alphabet = config.alphabet
    for kind, values, largest in alphabet.id_ranges(ids):
        if values.size and not (values.min() >= 0 and values.max() <= largest):
            raise invalid(
                f"ElmoLayer expects {kind} from 0 to {largest}",
                f"ids from {values.min()} to {values.max()}",
                _ADVICE,
            )
    first = ids[..., alphabet.leading]
    # Each row begins with the begin marker, or has only zeros.
    wrong = first[(first != alphabet.begin) & ((first != 0) | ids.any(-1))]
    if wrong.size:
        raise invalid(
            "ElmoLayer expects the characters of every token to begin with the id "
            f"{alphabet.begin}",
            f"{wrong[0]}, an id of another alphabet",
            _ADVICE,
        )
    # Look for a token in the sentences that begin with padding.
    if (first[:, :1] == 0).any() and (first[first[:, 0] == 0] != 0).any():
        raise invalid(
            "ElmoLayer expects padding after the tokens of a sentence",
            "a sentence that begins with padding",
            'Use pad_sequences(..., padding="post")',
        )
