"""Variables of TensorFlow 1: checkpoints of bilm-tf's training, and modules of TF-Hub."""

import abc
import functools
import pathlib
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.base import Format, Mix
from keras_elmo.formats.bilm_weights import variables_layout
from keras_elmo.formats.checks import check_tensors
from keras_elmo.formats.folder import Folder
from keras_elmo.formats.weight_mapping import WeightMapping, make_mapping
from keras_elmo.utils.extras import import_extra
from keras_elmo.utils.files import library_errors

# Tensors of a biLM. Other variables, of the optimizer for example, are ignored.
_BILM_TENSOR = re.compile(r"(CNN|RNN_).*/([Wb]_\w+|kernel|bias)")
# The scale of a learned mix by its weights, as google/elmo and as DeepPavlov name them.
_SCALES = {"weights": "scaling", "elmo_output_ELMo_W": "elmo_output_ELMo_gamma"}


class _Variables(Format):
    """A biLM in the variables of a checkpoint. A subclass chooses the checkpoint.

    Attributes:
        cell: str. The start of the names of an LSTM.
        is_padded: bool. Whether the characters have a row for the padding.
    """

    characters = "char_embed"
    cell = ""
    is_padded = False

    @abc.abstractmethod
    def index(self) -> pathlib.Path:
        """Return the index file of the checkpoint."""

    @property
    def source(self) -> str:
        return f"Checkpoint {self.index()}"

    @functools.cached_property
    def tensors(self) -> dict[str, list[int]]:
        """The shapes of all variables by name."""
        return self._call(lambda reader: reader.get_variable_to_shape_map())

    def read_tensors(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        names = list(names)
        return self._call(lambda reader: {n: np.asarray(reader.get_tensor(n)) for n in names})

    def mapping(self) -> WeightMapping:
        layout = variables_layout(self.cell, self.is_padded)
        return make_mapping(layout, self.config, self.prefix)

    def belongs_to_bilm(self, name: str) -> bool:
        return bool(_BILM_TENSOR.fullmatch(name.removeprefix(self.prefix)))

    def _call(self, function: Any) -> Any:
        """Call a function with TensorFlow's reader, whose errors get the name of the file."""
        tensorflow = import_extra(
            "tensorflow", f"Reading {self.index()}", "TensorFlow", "tensorflow"
        )
        problem = f"{self.source} is damaged, incomplete, or not a TensorFlow checkpoint"
        with library_errors(problem, "Fetch all its files again"):
            prefix = str(self.index()).removesuffix(".index")
            return function(tensorflow.train.load_checkpoint(prefix))


class BilmTfCheckpoint(_Variables):
    """A checkpoint of bilm-tf's training, with its options and its vocabulary."""

    name = "bilm-tf checkpoint"
    cell = "RNN_{d}/rnn/multi_rnn_cell/cell_{l}/lstm_cell"

    @classmethod
    def recognises(cls, folder: Folder) -> bool:
        return bool(folder.ending(".index"))

    def index(self) -> pathlib.Path:
        candidates, latest = self.folder.ending(".index"), ""
        for note in self.folder.named("checkpoint"):
            text = note.read_text("utf-8", "replace")
            if found := re.search(r'^model_checkpoint_path: "(.+)"$', text, re.MULTILINE):
                latest = re.split(r"[/\\]", found[1])[-1] + ".index"
        return self.folder.pick(
            "*.index, unless a file 'checkpoint' names one of them",
            [file for file in candidates if file.name == latest],
            candidates,
        )

    def read_softmax_tensors(self) -> dict[str, np.ndarray]:
        names = [f"{self.prefix}softmax/{name}" for name in "Wb"]
        found = self.read_tensors(name for name in names if name in self.tensors)
        return {name.removeprefix(self.prefix): x for name, x in found.items()}


class HubModule(_Variables):
    """A module of TF-Hub's first format, or its copy in TF-Hub's cache: a SavedModel."""

    name = "TF-Hub module"
    released_config = BiLMConfig()
    released_tokenizer = "penn"
    cell = "RNN_{d}/RNN/MultiRNNCell/Cell{l}/rnn/lstm_cell"
    is_padded = True

    @classmethod
    def recognises(cls, folder: Folder) -> bool:
        return bool(folder.named("saved_model.pb"))

    def index(self) -> pathlib.Path:
        return self.folder.pick("variables.index")

    def read_mixes(self) -> list[Mix]:
        mixes = []
        for name in sorted(self.tensors):
            stem, _, weights = name.rpartition("aggregation/")
            scale = f"{stem}aggregation/{_SCALES.get(weights)}"
            if scale in self.tensors:
                scalars, gamma = self.read_tensors([name, scale]).values()
                arrays = {name: scalars, scale: gamma.reshape(-1)}
                check_tensors(self.source, arrays, {name: (scalars.size,), scale: (1,)})
                mixes.append(Mix(tuple(scalars.tolist()), gamma.item()))
        return mixes
