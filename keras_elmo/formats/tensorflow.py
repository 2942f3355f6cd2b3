"""Variables of TensorFlow 1: checkpoints of bilm-tf's training, and modules of TF-Hub."""

import abc
import functools
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.base import Format, Mix, SoftmaxFile
from keras_elmo.formats.bilm_weights import variables_layout
from keras_elmo.formats.checks import Shape, check_tensors
from keras_elmo.formats.folder import Folder, PresetFile, base_name
from keras_elmo.formats.weight_mapping import Layout, WeightMapping, infer_fields, make_mapping
from keras_elmo.utils.extras import import_extra

# Tensors of a biLM. Other variables, of the optimizer for example, are ignored.
_PART = re.compile(r"(CNN|RNN_).*/([Wb]_\w+|kernel|bias)")
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

    def infer_config(self) -> BiLMConfig:
        return self.config_of(**infer_fields(self._layout(), self._shapes, self.source))

    def mapping(self) -> WeightMapping:
        return make_mapping(self._layout(self.config.n_layers), self.config, self._prefix)

    def belongs_to_bilm(self, name: str) -> bool:
        return bool(_PART.fullmatch(name.removeprefix(self._prefix)))

    def _layout(self, n_layers: int = 1) -> Layout:
        n_rows = self._shapes["char_embed"][:1]
        return variables_layout(self._shapes, n_rows == (BiLMConfig().n_characters,), n_layers)

    @functools.cached_property
    def _prefix(self) -> str:
        """The prefix of the names of the biLM's tensors."""
        names = [name for name in self.tensors if base_name(name) == "char_embed"]
        if len(names) != 1:
            raise ValueError(
                f"{self.source} must contain the tensor 'char_embed' of one biLM over characters. "
                f"Received: {names[:20]}, among {sorted(self.tensors)[:5]}"
            )
        return names[0].removesuffix("char_embed")

    @functools.cached_property
    def _shapes(self) -> dict[str, Shape]:
        """The shapes of the biLM's tensors. The names lack the prefix."""
        return {
            name.removeprefix(self._prefix): tuple(shape)
            for name, shape in self.tensors.items()
            if name.startswith(self._prefix)
        }

    @functools.cached_property
    def _reader(self) -> Any:
        owner = f"Reading {self.index()}"
        tensorflow = import_extra("tensorflow", owner, "TensorFlow", "tensorflow")
        return tensorflow.train.load_checkpoint(str(self.index().path).removesuffix(".index"))

    def _call(self, function: Any) -> Any:
        """Call a function with TensorFlow's reader, whose errors get the name of the file."""
        try:
            return function(self._reader)
        except ImportError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise OSError(
                f"{self.source} is damaged, incomplete, or not a TensorFlow checkpoint ({reason}). "
                "Fetch all its files again"
            ) from error


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
            text = self.folder.file(note).path.read_text("utf-8", "replace")
            if found := re.search(r'^model_checkpoint_path: "(.+)"$', text, re.MULTILINE):
                name = re.split(r"[/\\]", found[1])[-1] + ".index"
                latest = [n for n in candidates if base_name(n) == name]
        return self.folder.pick(
            "*.index, unless a file 'checkpoint' names one of them", latest, candidates
        )

    def read_softmax(self) -> SoftmaxFile | None:
        vocabulary = self.vocabulary_file()
        softmax = self.read_tensors(self.more_names())
        if vocabulary is None or not softmax:
            return None
        arrays = {name.removeprefix(self._prefix): x for name, x in softmax.items()}
        return self.arrange_softmax(self.source, arrays, vocabulary)

    def more_names(self) -> set[str]:
        if self.vocabulary_file() is None:
            return set()
        return {f"{self._prefix}softmax/W", f"{self._prefix}softmax/b"} & self.tensors.keys()


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
        for pair in self._mix_names():
            scalars, gamma = self.read_tensors(pair).values()
            arrays = {pair[0]: scalars, pair[1]: gamma.reshape(-1)}
            check_tensors(self.source, arrays, {pair[0]: (scalars.size,), pair[1]: (1,)})
            mixes.append(Mix(tuple(scalars.tolist()), gamma.item()))
        return mixes

    def more_names(self) -> set[str]:
        return {name for pair in self._mix_names() for name in pair}

    def _mix_names(self) -> list[tuple[str, str]]:
        pairs = [
            (name, name.removesuffix(weights) + scale)
            for weights, scale in _MIXES
            for name in sorted(self.tensors)
            if name == weights or name.endswith("/" + weights)
        ]
        return [pair for pair in pairs if pair[1] in self.tensors]
