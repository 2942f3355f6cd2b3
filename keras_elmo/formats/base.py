"""The base class of the formats, and the results of reading a preset."""

import abc
import dataclasses
import functools
import pathlib
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.bilm_weights import bilm_mapping
from keras_elmo.formats.checks import Shape, check_tensors
from keras_elmo.formats.folder import Folder
from keras_elmo.formats.vocabulary import arrange_vocabulary
from keras_elmo.formats.weight_mapping import (
    WeightMapping,
    expected_shapes,
    extract,
    fingerprint,
    load,
    to_float32,
)
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.files import PathLike, read_options, read_vocabulary_lines

TOKENIZER_FILE = "tokenizer.json"
_OPTIONS_NAMES = "*options.json or options_file, or options= (--options)"


@dataclasses.dataclass(frozen=True, eq=False)
class BiLMFile:
    """The config of a biLM, and its weights by the paths of the variables."""

    config: BiLMConfig
    values: dict[str, np.ndarray]
    file_name: str

    @property
    def n_parameters(self) -> int:
        """Number of values in our variables. They include a character embedding for padding."""
        return sum(array.size for array in self.values.values())

    def fingerprint(self, dtype: str = "float32") -> str:
        """Return the fingerprint of variables of a dtype with these weights."""
        values = {path: to_float32(array) for path, array in self.values.items()}
        if dtype != "float32":  # NumPy knows bfloat16 once Keras is imported
            values = {path: array.astype(dtype) for path, array in values.items()}
        return fingerprint(values)

    def assign(self, variables: Mapping[str, Any]) -> None:
        """Copy the weights into the variables of a biLM with the same config, by path."""
        for path, array in self.values.items():
            variables[path].assign(array)

    def bilm_arrays(self) -> dict[str, np.ndarray]:
        """Return the weights as float32, by their names in bilm-tf's hdf5 files."""
        return extract(bilm_mapping(self.config), self.values)


@dataclasses.dataclass(frozen=True)
class Mix:
    """A learned scalar mix: the scalars before the softmax, and whether layers are normalised."""

    scalars: tuple[float, ...]
    gamma: float
    layer_norm: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class SoftmaxFile:
    """The vocabulary and the softmax that make a biLM a language model.

    The vocabulary starts with ``<S> </S> <UNK>``. The arrays are ``softmax/W``, shape
    ``(tokens, projection_dim)``, and ``softmax/b``.
    """

    vocabulary: list[str]
    arrays: dict[str, np.ndarray]


class Format(abc.ABC):
    """The files of a biLM, in one format. Each subclass is a format, listed in ``presets.FORMATS``.

    A subclass has a ``name``, ``recognises`` its files, lists its ``tensors``, and says in
    ``mapping`` which of them belong to which variables. All else has defaults.

    Args:
        folder: ``Folder``. The files.
        options: dict, path of a JSON file, or None. They replace the options in the files.
        released: dict or None. Facts about the biLM from the registry of released models.

    Attributes:
        name: str. Name of the format.
        characters: str. The tensor of the character embeddings; its full name can have a prefix.
        tokens: str. The tokens that the biLM was trained on, in words; empty if not known.
        released_config: ``BiLMConfig`` or None. The options of the released models, if the files
            of this format need not contain options.
        released_tokenizer: str or None. The ``WordTokenizer`` of the released models.
    """

    name = ""
    characters = ""
    tokens = ""
    released_config: BiLMConfig | None = None
    released_tokenizer: str | None = None

    def __init__(
        self, folder: Folder, options: dict | PathLike | None = None, released: dict | None = None
    ) -> None:
        self.folder = folder
        self.given_options = options
        if released is not None:
            self.tokens = released["tokens"]
            self.released_tokenizer = released["tokenizer"] or self.released_tokenizer

    @classmethod
    @abc.abstractmethod
    def recognises(cls, folder: Folder) -> bool:
        """Return whether the names of the files show this format."""

    @property
    def files(self) -> list[pathlib.Path]:
        """The files of the biLM. No output may replace them."""
        path = self.folder.path
        return [path, *self.folder.files] if path.is_file() else self.folder.files

    # The small files: options, tokenizer, vocabulary and model card.

    @functools.cached_property
    def config(self) -> BiLMConfig:
        """The config. Without options, it is the released models' config, with a warning."""
        options: Any = self.given_options
        if options is None:
            options = self.options_file()
        if options is None and self.released_config:
            warnings.warn(
                f"{self.name} {self.folder.path} does not contain the options of its biLM. The "
                f"options of the released models are used: {self.released_config}. Pass options= "
                "(--options) if the biLM has others",
                stacklevel=2,
            )
            return self.released_config
        if isinstance(options, dict):
            return self.parse_options(options, None)
        return self.parse_options(read_options(options), options)

    def options_file(self) -> pathlib.Path | None:
        """Return the file with the options, or None if the format needs none and there is none."""
        choices = self.folder.ending("options.json"), self.folder.named("options_file")
        if self.released_config and not any(choices):
            return None
        return self.folder.pick(_OPTIONS_NAMES, *choices)

    def parse_options(self, options: dict, file: PathLike | None) -> BiLMConfig:
        """Return the config of the content of an options file. Errors name the ``file``."""
        return BiLMConfig.from_options(options, file)

    @property
    def tokenizer(self) -> str | None:
        """The name of the ``WordTokenizer`` whose tokens the biLM was trained on, if known.

        Presets record it in ``tokenizer.json``. The released models of AllenNLP and TF-Hub were
        trained on Penn Treebank tokens.
        """
        for file in self.folder.named(TOKENIZER_FILE):
            name = read_options(file, "Tokenizer file").get("name")
            if isinstance(name, str):  # other programs write other files of this name
                return name
        return self.released_tokenizer

    @property
    def vocabulary_file(self) -> pathlib.Path | None:
        """``vocab.txt`` or, from simple_elmo_training, ``vocab.txt.gz``; None without it."""
        for name in ("vocab.txt", "vocab.txt.gz"):
            if self.folder.named(name):
                return self.folder.pick(name)
        return None

    @property
    def card(self) -> str:
        """The text of the model card ``README.md``, or an empty text without one."""
        cards = sorted(self.folder.named("README.md"), key=lambda file: len(file.parts))
        return cards[0].read_text("utf-8", "replace") if cards else ""

    # The weights.

    @property
    @abc.abstractmethod
    def source(self) -> str:
        """Kind and name of the file with the weights, for errors."""

    @property
    def tensors(self) -> Mapping[str, Any]:
        """All tensors by name: arrays, or placeholders that ``read_tensors`` replaces."""
        return {}

    def mapping(self) -> WeightMapping:
        """Return which tensors belong to which variables. The default is for bilm-tf's hdf5."""
        return bilm_mapping(self.config)

    @functools.cached_property
    def prefix(self) -> str:
        """The prefix of the names of the biLM's tensors."""
        found = [name for name in self.tensors if name.endswith(self.characters)]
        if len(found) != 1:
            raise invalid(
                f"{self.source} must contain the tensor '{self.characters}' of one biLM over "
                "characters",
                f"{found[:20]}, among {sorted(self.tensors)[:5]}",
                "Transformers and other language models are not biLMs of this kind",
            )
        return found[0].removesuffix(self.characters)

    def read_tensors(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Read some of the ``tensors`` by name."""
        return {name: self.tensors[name] for name in names}

    def belongs_to_bilm(self, name: str) -> bool:
        """Return whether a tensor is part of a biLM, so that it is an error not to use it."""
        return True

    def read(self) -> BiLMFile:
        """Read the options and the weights of the biLM.

        Raises:
            OSError: If a file is missing or damaged.
            ValueError: If there is not exactly one options file and one weight file, or if they
                do not fit together.
            ImportError: If the files need PyTorch or TensorFlow and it is not installed.
        """
        mapping = self.mapping()
        arrays = self.read_bilm_tensors(expected_shapes(mapping))
        return BiLMFile(self.config, load(mapping, arrays), self.source)

    def read_bilm_tensors(self, expected: dict[str, Shape]) -> dict[str, np.ndarray]:
        """Read the tensors of the biLM, which must have the expected names and shapes."""
        names = [n for n in self.tensors if n in expected or self.belongs_to_bilm(n)]
        arrays = self.read_tensors(names)
        check_tensors(self.source, arrays, expected)
        return arrays

    # The scalar mixes and the softmax, which few files contain.

    def read_mixes(self) -> list[Mix]:
        """Read the learned scalar mixes. For errors see ``read``."""
        return []

    def read_softmax_tensors(self) -> dict[str, np.ndarray]:
        """Read ``softmax/W`` and ``softmax/b``, with a row for each line of the vocabulary."""
        return {}

    def read_softmax(self) -> SoftmaxFile | None:
        """Read the softmax and its vocabulary. Return None if the files do not contain both."""
        vocabulary = self.vocabulary_file
        arrays = self.read_softmax_tensors() if vocabulary else {}
        if vocabulary is None or not arrays:
            return None
        tokens, rows = arrange_vocabulary(read_vocabulary_lines(vocabulary), vocabulary)
        shapes = {"softmax/W": (len(rows), self.config.projection_dim), "softmax/b": (len(rows),)}
        check_tensors(f"Softmax of {self.folder.path}", arrays, shapes)
        if not np.array_equal(rows, np.arange(len(rows))):
            arrays = {name: array[rows] for name, array in arrays.items()}
        return SoftmaxFile(tokens, arrays)
