"""A biLM as an options and a weight file hold it, in bilm-tf's layout."""

import dataclasses
import json
import math
import pathlib

import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.bilm_weights import bilm_rows
from keras_elmo.formats.hdf5 import MEBIBYTE, SLACK, open_hdf5, write_arrays
from keras_elmo.formats.weight_mapping import (
    WORDS,
    assign,
    expected_shapes,
    extract,
    fingerprint,
    load,
)
from keras_elmo.utils.files import atomic_write, read_options


@dataclasses.dataclass(frozen=True, eq=False)
class BiLMFile:
    """What an options and a weight file say of a biLM; they fit together.

    Attributes:
        config: The ``BiLMConfig``.
        arrays: The tensors by the names of the weight file, NumPy.
        origin: Name of the weight file, for errors.
    """

    config: BiLMConfig
    arrays: dict
    origin: str

    @property
    def n_parameters(self) -> int:
        """Numbers in our variables, which have one row of characters more, for padding."""
        return sum(array.size for array in self._values().values())

    def fingerprint(self, dtype="float32") -> str:
        """Return the fingerprint that variables of a dtype would have with these tensors."""
        values = self._values()
        if dtype != "float32":
            import ml_dtypes  # comes with Keras; NumPy then knows bfloat16

            dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
            values = {p: a.astype("float32").astype(dtype) for p, a in values.items()}
        return fingerprint(values)

    def assign(self, variables: dict) -> None:
        """Copy the tensors into the variables of a biLM, by path: all of them, or none."""
        assign(bilm_rows(self.config, self.arrays), self.arrays, variables, self.origin)

    def _values(self):
        return load(bilm_rows(self.config, self.arrays), self.arrays)


def read_bilm(options_file, weight_file) -> BiLMFile:
    """Read a biLM from two files.

    Args:
        options_file: Path of the ``options.json``.
        weight_file: Path of the ``weights.hdf5``.

    Raises:
        OSError: If a file is missing or damaged.
        ValueError: If the options are not those of a biLM over characters, or the weights
            do not fit them; the error names every tensor that does not.
    """
    return read_weights(read_config(options_file), weight_file, options_origin=options_file)


def read_config(options_file, origin=None) -> BiLMConfig:
    """Read the config from an options file, a path or a binary file object."""
    options = read_options(options_file, origin)
    return BiLMConfig.from_options(options, str(options_file) if origin is None else origin)


def read_weights(config, weight_file, origin=None, options_origin="") -> BiLMFile:
    """Read the weights that belong to a config, from a path or a binary file object.

    ``origin`` and ``options_origin`` are the names of the two files, for errors. What the file
    declares is held against the config before anything is read.
    """
    origin = str(weight_file) if origin is None else origin
    with open_hdf5(weight_file, origin) as file:
        expected = expected_shapes(bilm_rows(config, file.walk()))
        words = WORDS | {"fits": f"{WORDS['fits']} {options_origin}".rstrip()}
        return BiLMFile(config, file.read_all(expected, **words), origin)


def largest_weight_file(config) -> int:
    """Return the bytes that a weight file of the config can have, with numbers of 8 bytes."""
    shapes = expected_shapes(bilm_rows(config)).values()
    numbers = sum(map(math.prod, shapes))
    return max(8 * numbers + len(shapes) * MEBIBYTE // 64, SLACK)


def write_bilm(directory, config, variables: dict) -> None:
    """Write ``options.json`` and ``weights.hdf5``, both or none.

    Args:
        directory: Where to; made if it does not exist.
        config: The ``BiLMConfig``.
        variables: The Keras variables of the biLM, by path.
    """
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    arrays = extract(bilm_rows(config), variables)
    with atomic_write(directory / "options.json", directory / "weights.hdf5") as (o, w):
        o.write_text(json.dumps(config.to_options(), indent=2, ensure_ascii=False) + "\n", "utf-8")
        write_arrays(w, arrays)
