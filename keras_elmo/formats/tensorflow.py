"""Variables of TensorFlow 1: checkpoints of bilm-tf's training, and modules of TF-Hub."""

import abc
import dataclasses
import functools
import re

from keras_elmo.alphabets import N_CHARACTERS
from keras_elmo.config import BiLMConfig
from keras_elmo.formats.base import BiLMFile, Format, Mix, SoftmaxFile, convert_bilm
from keras_elmo.formats.bilm_weights import (
    MISSING_TENSORS,
    LstmNames,
    bilm_mapping,
    find_lstm_names,
    shapes_of_series,
)
from keras_elmo.formats.checks import Shape, check_tensors
from keras_elmo.formats.folder import Folder, PresetFile, base_name
from keras_elmo.formats.tensor_bundle import TensorBundle
from keras_elmo.formats.weight_mapping import WeightMapping, expected_shapes
from keras_elmo.utils.files import read_bytes

_LARGEST_NOTE = 1 << 20
_LSTM_NAMES = [
    LstmNames(cell, "kernel", "bias", "projection/kernel")
    for cell in (
        "RNN_{}/rnn/multi_rnn_cell/cell_{}/lstm_cell",
        "RNN_{}/rnn/lstm_cell",
        "RNN_{}/RNN/MultiRNNCell/Cell{}/rnn/lstm_cell",
        "RNN_{}/RNN/rnn/lstm_cell",
    )
]
# Weights and scale of the learned mix, as google/elmo and as DeepPavlov name them.
_MIXES = (
    ("aggregation/weights", "aggregation/scaling"),
    ("aggregation/elmo_output_ELMo_W", "aggregation/elmo_output_ELMo_gamma"),
)


class _Variables(Format):
    """A biLM in the variables of a checkpoint. A subclass chooses the checkpoint."""

    @abc.abstractmethod
    def index(self) -> PresetFile:
        """Return the index file of the checkpoint."""

    def read(self) -> BiLMFile:
        mapping = self._mapping()
        expected = expected_shapes(mapping)
        # A variable of the biLM that is not expected is an error. Others, of the optimizer for
        # example, are ignored.
        part = re.compile(re.escape(self._prefix) + r"(CNN|RNN_).*/([Wb]_\w+|kernel|bias)")
        declared = self._bundle.declared
        found = {n: x for n, x in declared.items() if n in expected or part.fullmatch(n)}
        # An index can declare many times the bytes of its file: check it before reading.
        check_tensors(f"Checkpoint {self._bundle.index}", found, expected)
        arrays = self._bundle.read(found)
        return convert_bilm(self.config, mapping, arrays, "Checkpoint", self._bundle.index)

    def infer_config(self) -> BiLMConfig:
        shapes = self._shapes
        kernels = shapes_of_series(shapes, "CNN/W_cnn_{}", 4)
        lstm = find_lstm_names(_LSTM_NAMES, shapes)
        biases = shapes_of_series(shapes, f"{lstm.cell.format(0, '{}')}/{lstm.bias}", 1)
        characters, projection = shapes["char_embed"], shapes.get("CNN_proj/b_proj")
        if not (kernels and biases and len(characters) == 2):
            raise ValueError(MISSING_TENSORS.format(f"Checkpoint {self._bundle.index}"))
        filters = [(kernel[1], kernel[3]) for kernel in kernels]
        return self._config_of(
            self._bundle.index,
            filters=filters,
            character_embedding_dim=characters[1],
            n_highway=len(shapes_of_series(shapes, "CNN_high_{}/W_carry", 2)),
            lstm_dim=biases[0][0] // 4,
            projection_dim=projection[0] if projection else sum(n for _, n in filters),
            n_layers=len(biases),
        )

    def tensor_names(self, with_bilm: bool = True) -> tuple[list[str], list[str]]:
        used = self._other_used_names()
        used |= set(expected_shapes(self._mapping())) if with_bilm else set()
        return sorted(used), sorted({*self._bundle.declared, *self._bundle.others} - used)

    def _other_used_names(self) -> set[str]:
        """Return the names of tensors that are used and are not part of the biLM."""
        return set()

    @functools.cached_property
    def _bundle(self) -> TensorBundle:
        return TensorBundle(self.folder, self.index())

    @functools.cached_property
    def _prefix(self) -> str:
        """The prefix of the names of the biLM's tensors."""
        names = [n for n in self._bundle.declared if base_name(n) == "char_embed"]
        if len(names) != 1:
            raise ValueError(
                f"Checkpoint {self._bundle.index} must contain the tensor 'char_embed' of one "
                f"biLM over characters. Received: {names[:20]}, among "
                f"{sorted(self._bundle.declared)[:5]}"
            )
        return names[0].removesuffix("char_embed")

    @functools.cached_property
    def _shapes(self) -> dict[str, Shape]:
        """The shapes of the biLM's tensors. The names lack the prefix."""
        return {
            name.removeprefix(self._prefix): declared.shape
            for name, declared in self._bundle.declared.items()
            if name.startswith(self._prefix)
        }

    def _mapping(self) -> WeightMapping:
        """Return the weight mapping of the biLM."""
        # Modules of TF-Hub have a row for the padding.
        has_padding_row = self._shapes["char_embed"][:1] == (N_CHARACTERS,)
        mapping = bilm_mapping(self.config, self._shapes, _LSTM_NAMES, has_padding_row)
        return WeightMapping(
            dataclasses.replace(tensor, source=self._prefix + tensor.source) for tensor in mapping
        )


class BilmTfCheckpoint(_Variables):
    """A checkpoint of bilm-tf's training, with its options and its vocabulary."""

    name = "bilm-tf checkpoint"

    @classmethod
    def recognises(cls, folder: Folder) -> bool:
        return bool(folder.ending(".index"))

    def index(self) -> PresetFile:
        if self.folder.checkpoint:
            return self.folder.file(f"{self.folder.checkpoint}.index")
        candidates = self.folder.ending(".index")
        latest: list[str] = []
        for note in self.folder.named("checkpoint"):
            content = read_bytes(self.folder.file(note), most=_LARGEST_NOTE)
            text = content.decode("utf-8", "replace")
            if found := re.search(r'^model_checkpoint_path: "(.+)"$', text, re.MULTILINE):
                name = re.split(r"[/\\]", found[1])[-1] + ".index"
                latest = [n for n in candidates if base_name(n) == name]
        return self.folder.pick(
            "*.index, unless a file 'checkpoint' names one of them", latest, candidates
        )

    def read_softmax(self) -> SoftmaxFile | None:
        vocabulary, names = self.vocabulary_file(), self._other_used_names()
        if vocabulary is None or f"{self._prefix}softmax/W" not in names:
            return None
        arrays = {n.removeprefix(self._prefix): x for n, x in self._bundle.read(names).items()}
        return self._arrange_softmax(f"Checkpoint {self._bundle.index}", arrays, vocabulary)

    def _other_used_names(self) -> set[str]:
        if self.vocabulary_file() is None:
            return set()
        names = {f"{self._prefix}softmax/W", f"{self._prefix}softmax/b"}
        return names & set(self._bundle.declared)


class HubModule(_Variables):
    """A module of TF-Hub's first format, or its copy in TF-Hub's cache: a SavedModel."""

    name = "TF-Hub module"
    tokenizer = "penn"

    @classmethod
    def recognises(cls, folder: Folder) -> bool:
        return bool(folder.named("saved_model.pb"))

    def index(self) -> PresetFile:
        return self.folder.pick("variables.index")

    def read_mixes(self) -> list[Mix]:
        mixes = []
        for weights, scale in self._mix_names():
            layers, scale_shape = (self._bundle.declared[n].shape for n in (weights, scale))
            expected = {weights: layers[:1] or (0,), scale: (1,) if scale_shape == (1,) else ()}
            arrays = self._bundle.read([weights, scale])
            check_tensors(f"Checkpoint {self._bundle.index}", arrays, expected)
            mixes.append(Mix(tuple(arrays[weights].tolist()), arrays[scale].item()))
        return mixes

    def _other_used_names(self) -> set[str]:
        return {name for pair in self._mix_names() for name in pair}

    def _mix_names(self) -> list[tuple[str, str]]:
        names = self._bundle.declared
        pairs = [
            (name, name.removesuffix(weights) + scale)
            for weights, scale in _MIXES
            for name in sorted(names)
            if name == weights or name.endswith("/" + weights)
        ]
        return [pair for pair in pairs if pair[1] in names]
