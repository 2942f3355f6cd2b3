"""The files of bilm-tf's layout: options and weights in hdf5, under any of their usual names."""

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.base import BiLMFile, Format, Mix
from keras_elmo.formats.bilm_weights import bilm_mapping
from keras_elmo.formats.checks import Shape
from keras_elmo.formats.folder import Folder
from keras_elmo.formats.hdf5 import read_arrays, write_arrays
from keras_elmo.formats.weight_mapping import expected_shapes, load
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.files import PathLike, read_options, write_json

_WEIGHTS_NAMES = "*weights.hdf5, model.hdf5, any other *.hdf5 but softmax.hdf5, or weights_file"


def read_bilm(options_file: PathLike, weight_file: PathLike) -> BiLMFile:
    """Read a biLM from two files. The error for weights names every tensor that does not fit."""
    config = BiLMConfig.from_options(read_options(options_file), options_file)
    mapping = bilm_mapping(config)
    arrays = read_arrays(weight_file, expected_shapes(mapping))
    return BiLMFile(config, load(mapping, arrays), str(weight_file))


def bilm_writers(
    config: BiLMConfig, arrays: dict[str, np.ndarray], **filters: Any
) -> dict[str, Callable[[pathlib.Path], object]]:
    """Return the ``writers`` of ``write_files`` for ``options.json`` and ``weights.hdf5``."""
    return {
        "options.json": lambda path: write_json(path, config.to_options()),
        "weights.hdf5": lambda path: write_arrays(path, arrays, **filters),
    }


def write_softmax(file: PathLike, kernel: np.ndarray, bias: np.ndarray) -> None:
    """Write ``softmax.hdf5`` with 8 bits for each number of the kernel, and a scale for each row.

    This halves the file. The perplexities of the bundled presets changed by less than 0.02%.
    ``read_softmax`` returns float32.
    """
    numbers, scale = to_eight_bits(kernel)
    arrays = {"softmax/W": numbers, "softmax/W_scale": scale, "softmax/b": bias}
    write_arrays(file, arrays, compression="gzip", compression_opts=9, shuffle=True)


def to_eight_bits(kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a kernel as whole numbers from -127 to 127 and a scale for each row.

    The scales have 16 significant bits, so that the products are exact and a second call returns
    the same numbers.
    """
    largest = np.abs(kernel).max(axis=1)
    bits = np.where(largest > 0, largest / 127, 1).astype("float32").view("uint32")
    scale = (bits + 0x80 & 0xFFFFFF00).astype("uint32").view("float32")
    return np.rint(kernel / scale[:, None]).astype("int8"), scale


class BilmHdf5(Format):
    """The files of bilm-tf's ``dump_weights``, of AllenNLP's releases, and of our own presets.

    The softmax is in ``softmax.hdf5``, the scalar mixes are in ``scalar_mix.json``.
    """

    name = "bilm-tf hdf5"

    @classmethod
    def recognises(cls, folder: Folder) -> bool:
        return bool(_hdf5_files(folder) or folder.named("weights_file"))

    @property
    def source(self) -> str:
        return f"Weight file {self._weight_file()}"

    def read_bilm_tensors(self, expected: dict[str, Shape]) -> dict[str, np.ndarray]:
        return read_arrays(self._weight_file(), expected)

    def read_mixes(self) -> list[Mix]:
        if not self.folder.named("scalar_mix.json"):
            return []
        file = self.folder.pick("scalar_mix.json")
        try:
            return [
                Mix(tuple(map(float, x["scalars"])), float(x["gamma"]), bool(x["layer_norm"]))
                for x in read_options(file, "Scalar mixes", list)
            ]
        except (TypeError, LookupError) as error:
            raise invalid(
                f"Scalar mixes {file} must be a list of objects with scalars (a list of numbers), "
                "gamma (a number) and layer_norm (true or false)",
                repr(error),
            ) from None

    def read_softmax_tensors(self) -> dict[str, np.ndarray]:
        if not self.folder.named("softmax.hdf5"):
            return {}
        arrays = read_arrays(self.folder.pick("softmax.hdf5"), kind="Softmax file", kinds="fi")
        kernel, scale = arrays.get("softmax/W"), arrays.get("softmax/W_scale")
        if kernel is not None and scale is not None and scale.shape == kernel.shape[:1]:
            del arrays["softmax/W_scale"]
            arrays["softmax/W"] = kernel * scale[:, None]  # from the numbers of write_softmax
        return arrays

    def _weight_file(self) -> pathlib.Path:
        folder = self.folder
        best, model = folder.ending("weights.hdf5"), folder.named("model.hdf5")
        choices = best, model, _hdf5_files(folder), folder.named("weights_file")
        return folder.pick(_WEIGHTS_NAMES, *choices)


def _hdf5_files(folder: Folder) -> list[pathlib.Path]:
    return [file for file in folder.ending(".hdf5") if file.name.lower() != "softmax.hdf5"]
