"""Variables of TensorFlow 1: training checkpoints of bilm-tf, and modules of TF-Hub."""

import abc
import dataclasses
import re

from keras_elmo.formats.base import Mix, SoftmaxFile, Source
from keras_elmo.formats.bilm_files import BiLMFile
from keras_elmo.formats.bilm_weights import bilm_rows
from keras_elmo.formats.files import base
from keras_elmo.formats.hdf5 import misfit_error, misfits
from keras_elmo.formats.tensor_bundle import TensorBundle
from keras_elmo.formats.weight_mapping import WORDS, expected_shapes
from keras_elmo.tokenizers.characters import N_CHARACTERS

_LARGEST_NOTE = 1 << 20
_CELL = re.compile(r"RNN_([01])/RNN/(?:MultiRNNCell/Cell(\d+)/)?LSTMCell/(\w+)")
_LEAVES = {"W_0": "kernel", "B": "bias", "W_P_0": "projection/kernel"}
_ONE_LAYER = "RNN_0/RNN/LSTMCell/W_0"
# The learned mix of a module, as google/elmo and as DeepPavlov call it.
_MIXES = (
    ("aggregation/weights", "aggregation/scaling"),
    ("aggregation/elmo_output_ELMo_W", "aggregation/elmo_output_ELMo_gamma"),
)


@dataclasses.dataclass(frozen=True)
class _Spelling:
    """How variables are named for which bilm-tf's hdf5 has other names.

    Attributes:
        level: What stands for ``RNN/MultiRNNCell/Cell{}/LSTMCell``.
        alone: What stands for it without the level of a single layer.
    """

    level: str
    alone: str

    def spell(self, name) -> str:
        """Return the variable of a tensor, without prefix."""
        cell = _CELL.fullmatch(name)
        if not cell:
            return name
        direction, layer, leaf = cell.groups()
        inner = self.alone if layer is None else self.level.format(layer)
        return f"RNN_{direction}/{inner}/{_LEAVES[leaf]}"


_SPELLINGS = (
    _Spelling("rnn/multi_rnn_cell/cell_{}/lstm_cell", "rnn/lstm_cell"),
    _Spelling("RNN/MultiRNNCell/Cell{}/rnn/lstm_cell", "RNN/rnn/lstm_cell"),
)


class _Variables(Source):
    """A biLM among the variables of a checkpoint; a subclass says which checkpoint."""

    def __init__(self, files, options=None):
        super().__init__(files, options)
        self._opened = None

    @abc.abstractmethod
    def index(self) -> str:
        """Return the name of the checkpoint's index file."""

    def read(self) -> BiLMFile:
        config = self.read_config()
        sources = self._sources(config)
        expected = expected_shapes(bilm_rows(config, sources))
        declared = self._bundle.declared
        found = {source: declared[source] for source in sources.values() if source in declared}
        expected = {sources[name]: shape for name, shape in expected.items()}
        padded = expected[sources["char_embed"]]
        has_padding = sources["char_embed"] in found and (
            found[sources["char_embed"]].shape == (N_CHARACTERS, *padded[1:])
        )
        if has_padding:  # a row for it, in a module of TF-Hub
            expected[sources["char_embed"]] = (N_CHARACTERS, *padded[1:])
        unexpected = [n for n in self._of_bilm() if n not in expected]
        found |= {name: declared[name] for name in unexpected}
        arrays = self._read_tensors(expected, found, **WORDS)
        renamed = {name: arrays[source] for name, source in sources.items()}
        if has_padding:
            renamed["char_embed"] = renamed["char_embed"][1:]
        return BiLMFile(config, renamed, self._bundle.origin)

    def infer_config(self):
        def shape(name):
            found = self._bundle.declared.get(prefix + spelling.spell(name))
            return None if found is None else found.shape

        prefix, spelling = self._prefix(), self._spelling()
        filters, n_highway, n_layers = [], 0, 0
        while (kernel := shape(f"CNN/W_cnn_{len(filters)}")) and len(kernel) == 4:
            filters.append((kernel[1], kernel[3]))
        while shape(f"CNN_high_{n_highway}/W_carry"):
            n_highway += 1
        while shape(f"RNN_0/RNN/MultiRNNCell/Cell{n_layers}/LSTMCell/B"):
            n_layers += 1
        bias = shape("RNN_0/RNN/LSTMCell/B") or shape("RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/B")
        characters, projection = shape("char_embed"), shape("CNN_proj/b_proj")
        if not (filters and bias and len(characters or ()) == 2):
            raise self._misfit(["the tensors of a character CNN and of LSTMs are not all there"])
        return self.make_config(
            self._bundle.origin,
            filters=filters,
            character_embedding_dim=characters[1],
            n_highway=n_highway,
            lstm_dim=bias[0] // 4,
            projection_dim=projection[0] if projection else sum(n for _, n in filters),
            n_layers=max(1, n_layers),
        )

    def tensors(self):
        return self._part(set(self._sources(self.read_config()).values()) | self._used_besides())

    def _part(self, used):
        """Return the names of tensors that are used, and of all others."""
        names = [*self._bundle.declared, *self._bundle.others]
        return sorted(used), sorted(name for name in names if name not in used)

    def _used_besides(self):
        return set()

    def _read_tensors(self, expected, found, **words):
        """Return the arrays of what was found declared, if shapes and values are as expected."""
        problems = misfits(expected, found)
        arrays = {} if problems else self._bundle.read(expected)
        if problems := problems or misfits({}, arrays, values_only=True):
            raise misfit_error(f"Checkpoint {self._bundle.origin}", problems, **words)
        return arrays

    @property
    def _bundle(self):
        if self._opened is None:
            self._opened = TensorBundle(self.files, self.index())
        return self._opened

    def _prefix(self):
        """Return what stands in front of the names of the biLM's tensors."""
        names = [n for n in self._bundle.declared if base(n) == "char_embed"]
        if len(names) != 1:
            raise ValueError(
                f"Checkpoint {self._bundle.origin} must hold the tensor 'char_embed' of one biLM "
                f"over characters. Received: {names[:20]}, among "
                f"{sorted(self._bundle.declared)[:5]}"
            )
        return names[0].removesuffix("char_embed")

    def _spelling(self):
        prefix, names = self._prefix(), self._bundle.declared
        first = ("RNN_0/RNN/MultiRNNCell/Cell0/LSTMCell/W_0", _ONE_LAYER)
        for spelling in _SPELLINGS:
            if any(prefix + spelling.spell(name) in names for name in first):
                return spelling
        return _SPELLINGS[0]

    def _sources(self, config):
        """Return the variable of every tensor of bilm-tf's hdf5."""
        prefix, spelling = self._prefix(), self._spelling()
        alone = [_ONE_LAYER] if prefix + spelling.spell(_ONE_LAYER) in self._bundle.declared else []
        names = expected_shapes(bilm_rows(config, alone))
        return {name: prefix + spelling.spell(name) for name in names}

    def _of_bilm(self):
        """Return the names of all variables that look like parts of the biLM."""
        parts = re.compile(re.escape(self._prefix()) + "(CNN|RNN_|char_embed)")
        leaves = re.compile(r".*/([Wb]_\w+|kernel|bias|char_embed)")
        return [n for n in self._bundle.declared if parts.match(n) and leaves.fullmatch(n)]

    def _misfit(self, problems):
        return misfit_error(f"Checkpoint {self._bundle.origin}", problems, **WORDS)


class BilmTfCheckpoint(_Variables):
    """What bilm-tf's training leaves: ``*.index`` and its shards, options and vocabulary."""

    kind = "bilm-tf checkpoint"

    @classmethod
    def recognises(cls, files):
        return bool(files.ending(".index"))

    def index(self):
        if self.files.prefix:
            return f"{self.files.prefix}.index"
        candidates = self.files.ending(".index")
        latest = []
        for note in self.files.named("checkpoint"):
            text = self.files.read(note, _LARGEST_NOTE).decode("utf-8", "replace")
            if found := re.search(r'^model_checkpoint_path: "(.+)"$', text, re.MULTILINE):
                name = re.split(r"[/\\]", found[1])[-1] + ".index"
                latest = [n for n in candidates if base(n) == name]
        return self.files.pick(
            "*.index, or have a file 'checkpoint' that names one", latest, candidates
        )

    def read_softmax(self):
        vocabulary, origin = self.read_vocabulary()
        if vocabulary is None:
            return None
        kernel, bias = self._softmax_names()
        if kernel not in self._bundle.declared:
            return None
        size, width = len(vocabulary), self.read_config().projection_dim
        expected = {kernel: (size, width), bias: (size,)}
        declared = self._bundle.declared
        words = {
            "fits": "the options and vocabulary",
            "advice": "Do options.json, vocab.txt and the checkpoint belong together?",
        }
        found = {name: declared[name] for name in expected if name in declared}
        arrays = self._read_tensors(expected, found, **words)
        arrays = {"softmax/W": arrays[kernel], "softmax/b": arrays[bias]}
        return SoftmaxFile(vocabulary, arrays, origin)

    def softmax_tensors(self):
        """Return the names of the softmax's tensors, if it is read, and of all others."""
        return self._part(self._used_besides())

    def _used_besides(self):
        has_vocabulary = bool(self.files.named("vocab.txt"))
        names = self._softmax_names()
        return set(names) & set(self._bundle.declared) if has_vocabulary else set()

    def _softmax_names(self):
        prefix = self._prefix()
        return prefix + "softmax/W", prefix + "softmax/b"


class HubModule(_Variables):
    """A module of TF-Hub's first format, or what its cache holds of it: a SavedModel."""

    kind = "TF-Hub module"

    @classmethod
    def recognises(cls, files):
        return bool(files.named("saved_model.pb"))

    def index(self):
        names = self.files.named("variables.index")
        return self.files.pick("variables/variables.index", names)

    def read_mixes(self):
        declared, mixes = self._bundle.declared, []
        for weights, scale in self._mixes():
            found = {name: declared[name] for name in (weights, scale)}
            layers, of_scale = (x.shape for x in found.values())
            expected = {
                weights: (layers[0] if layers else 0,),
                scale: of_scale if of_scale == (1,) else (),
            }
            arrays = self._read_tensors(expected, found, **WORDS)
            scalars = tuple(float(x) for x in arrays[weights])
            mixes.append(Mix(scalars, float(arrays[scale].reshape(()))))
        return mixes

    def _used_besides(self):
        return {name for pair in self._mixes() for name in pair}

    def _mixes(self):
        names = self._bundle.declared
        pairs = [
            (name, name.removesuffix(weights) + scale)
            for weights, scale in _MIXES
            for name in sorted(names)
            if name == weights or name.endswith("/" + weights)
        ]
        return [pair for pair in pairs if pair[1] in names]
