"""The files of bilm-tf's layout: options and weights in hdf5, under any of their usual names."""

import functools
from typing import Any

import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.base import BiLMFile, Format, Mix, SoftmaxFile
from keras_elmo.formats.bilm_weights import bilm_mapping
from keras_elmo.formats.folder import Folder, PresetFile, base_name
from keras_elmo.formats.hdf5 import Hdf5Reader, read_arrays, write_arrays
from keras_elmo.formats.tensorflow import BilmTfCheckpoint
from keras_elmo.formats.weight_mapping import WeightMapping, expected_shapes, extract
from keras_elmo.utils.checks import is_number, shorten
from keras_elmo.utils.files import PathLike, read_options, write_files, write_json

_WEIGHTS_NAMES = (
    "*weights.hdf5, model.hdf5, any other *.hdf5 but softmax.hdf5, the same with .h5, or "
    "weights_file"
)


def read_bilm(options_file: PathLike, weight_file: PathLike) -> BiLMFile:
    """Read a biLM from two files. The error for weights names every tensor that does not fit."""
    config = BiLMConfig.from_options(read_options(options_file), options_file)
    return _read_weights(config, weight_file, options_file)


def _read_weights(config: BiLMConfig, weight_file: PathLike, place: object) -> BiLMFile:
    """Read the weights that belong to a config. ``place`` says in errors where it is from."""
    with Hdf5Reader(weight_file) as file:
        arrays = file.read_all(
            expected_shapes(bilm_mapping(config, file.walk())),
            fits=f"the options {place}",
            remedy="Do the options and weight files belong together?",
        )
    return BiLMFile(config, arrays, str(weight_file))


def write_bilm(directory: PathLike, config: BiLMConfig, variables: dict) -> None:
    """Write ``options.json`` and ``weights.hdf5``. The ``variables`` are by path."""
    arrays = extract(bilm_mapping(config), variables)
    writers = {
        "options.json": lambda path: write_json(path, config.to_options()),
        "weights.hdf5": lambda path: write_arrays(path, arrays),
    }
    write_files(directory, writers)


class BilmHdf5(Format):
    """The files of bilm-tf's ``dump_weights``, of AllenNLP's releases, and of our own presets.

    The softmax is in ``softmax.hdf5``, or in a checkpoint in the same folder, and needs a
    vocabulary. The scalar mixes are in ``scalar_mix.json``.
    """

    name = "bilm-tf hdf5"

    @classmethod
    def recognises(cls, folder: Folder) -> bool:
        return folder.checkpoint is None and bool(
            _hdf5_names(folder) or folder.named("weights_file")
        )

    @property
    def source(self) -> str:
        return f"Weight file {self._weight_file()}"

    @functools.cached_property
    def tensors(self) -> dict[str, np.ndarray]:
        return self.read().arrays

    def mapping(self) -> WeightMapping:
        return bilm_mapping(self.config, self.tensors)

    def read(self) -> BiLMFile:
        return _read_weights(self.config, self._weight_file(), self.options[1])

    def read_mixes(self) -> list[Mix]:
        if not self.folder.named("scalar_mix.json"):
            return []
        file = self.folder.pick("scalar_mix.json")
        values = read_options(file, "Scalar mixes")
        if not isinstance(values, list) or not all(map(_is_mix, values)):
            raise ValueError(
                f"Scalar mixes {file} must be a list of objects with scalars (a list of finite "
                "numbers), gamma (a finite number) and layer_norm (true or false). "
                f"Received: {shorten(values)}"
            )
        return [
            Mix(tuple(map(float, x["scalars"])), float(x["gamma"]), x["layer_norm"]) for x in values
        ]

    def read_softmax(self) -> SoftmaxFile | None:
        vocabulary = self.vocabulary_file()
        if self.folder.named("softmax.hdf5") and vocabulary is not None:
            file = self.folder.pick("softmax.hdf5")
            arrays = read_arrays(file, kind="Softmax file")
            return self.arrange_softmax(f"Softmax file {file}", arrays, vocabulary)
        if self.folder.ending(".index"):
            return BilmTfCheckpoint(self.folder, self.given_options).read_softmax()
        return None

    def _weight_file(self) -> PresetFile:
        choices = []
        for end in (".hdf5", ".h5"):
            choices += [self.folder.ending("weights" + end), self.folder.named("model" + end)]
            choices.append(_hdf5_names(self.folder, end))
        return self.folder.pick(_WEIGHTS_NAMES, *choices, self.folder.named("weights_file"))


def _hdf5_names(folder: Folder, end: str = ".hdf5") -> list[str]:
    return [name for name in folder.ending(end) if base_name(name).lower() != "softmax.hdf5"]


def _is_mix(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("scalars"), list):
        return False
    numbers = [*value["scalars"], value.get("gamma")]
    has_numbers = len(numbers) > 1 and all(map(is_number, numbers))
    return has_numbers and isinstance(value.get("layer_norm"), bool)
