"""The base class of the formats, and the results of reading a preset."""

import abc
import dataclasses
import functools
import pathlib
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.bilm_weights import bilm_mapping
from keras_elmo.formats.checks import check_tensors
from keras_elmo.formats.folder import Folder
from keras_elmo.formats.vocabulary import arrange_vocabulary
from keras_elmo.formats.weight_mapping import (
    WeightMapping,
    expected_shapes,
    extract,
    fingerprint,
    load,
)
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.files import PathLike, read_options, read_vocabulary_lines

_OPTIONS_NAMES = "*options.json or options_file, or options= (--options)"
# bilm-tf's own model has vocab-2016-09-10.txt, and simple_elmo reads vocab.txt.gz.
_VOCABULARY_NAME = re.compile(r".*vocab.*\.txt(\.gz)?", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, eq=False)
class BiLMFile:
    """The options and the weights of a biLM, by the paths of its variables."""

    config: BiLMConfig
    values: dict[str, np.ndarray]
    file_name: str

    @property
    def n_parameters(self) -> int:
        """Number of values in our variables. They include a character embedding for padding."""
        return sum(array.size for array in self.values.values())

    def fingerprint(self, dtype: str = "float32") -> str:
        """Return the fingerprint of variables of a dtype with these weights."""
        values = self.values
        if dtype != "float32":
            import ml_dtypes  # Keras requires it; NumPy knows bfloat16 once it is imported

            numpy_dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
            values = {p: a.astype("float32").astype(numpy_dtype) for p, a in values.items()}
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
    """A way in which files store a biLM. Each format is a subclass, listed in ``presets.FORMATS``.

    A subclass has a ``name``, ``recognises`` its files, lists its ``tensors``, and says in
    ``mapping`` which of them belong to which variables. All else has defaults.

    Args:
        folder: ``Folder``. The files.
        options: dict, path of a JSON file, or None. They replace the options in the files.

    Attributes:
        name: str. Name of the format.
        characters: str. The tensor of the character embeddings; its full name can have a prefix.
        tokenizer: str or None. The ``WordTokenizer`` of its released models.
        tokens: str. The tokens of its released models, in words.
        released_config: ``BiLMConfig`` or None. The options of its released models, if the files
            of this format need not contain options.
    """

    name = ""
    characters = ""
    tokenizer: str | None = None
    tokens = ""
    released_config: BiLMConfig | None = None

    def __init__(self, folder: Folder, options: dict | PathLike | None = None) -> None:
        self.folder = folder
        self.given_options = options

    @classmethod
    @abc.abstractmethod
    def recognises(cls, folder: Folder) -> bool:
        """Return whether the names of the files show this format."""

    # The options.

    @functools.cached_property
    def config(self) -> BiLMConfig:
        """The config. Without options, it is the released models' config, with a warning."""
        options, place = self.options
        if options is None and self.released_config:
            warnings.warn(
                f"{self.name} {self.folder.path} does not contain the options of its biLM. The "
                f"options of the released models are used: {self.released_config}. Pass options= "
                "(--options) if the biLM has others",
                stacklevel=4,
            )
            return self.released_config
        return self.parse_options(options, place)

    @functools.cached_property
    def options(self) -> tuple[Any, object]:
        """The options, given or in the files, and the name of their file or None."""
        if isinstance(self.given_options, dict):
            return self.given_options, None
        if self.given_options is not None:
            return read_options(self.given_options), self.given_options
        return self.read_options()

    def parse_options(self, options: Any, place: object) -> BiLMConfig:
        """Return the config of the content of an options file, whose name is ``place``."""
        return BiLMConfig.from_options(options, place)

    def read_options(self) -> tuple[Any, object]:
        """Return the content of an ``options.json``, and the name of the file for errors.

        A container with its options inside overrides this. Both are None without options.
        """
        names = self.folder.ending("options.json") or self.folder.named("options_file")
        if not names and self.released_config:
            return None, None
        file = self.folder.pick(_OPTIONS_NAMES, names)
        return read_options(file), file

    # The weights.

    @property
    @abc.abstractmethod
    def source(self) -> str:
        """Kind and name of the file with the weights, for errors."""

    @property
    def tensors(self) -> Mapping[str, Any]:
        """All tensors by name. The values are arrays, or what ``read_tensors`` replaces."""
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
        """Read the biLM."""
        mapping = self.mapping()
        expected = expected_shapes(mapping)
        names = [n for n in self.tensors if n in expected or self.belongs_to_bilm(n)]
        arrays = self.read_tensors(names)
        check_tensors(self.source, arrays, expected)
        return BiLMFile(self.config, load(mapping, arrays), self.source)

    # The scalar mixes and the softmax, which few files contain.

    def read_mixes(self) -> list[Mix]:
        """Read the scalar mixes."""
        return []

    def read_softmax(self) -> SoftmaxFile | None:
        """Read the softmax and its vocabulary. Return None if the files contain no softmax."""
        return None

    def vocabulary_file(self) -> pathlib.Path | None:
        """Return ``vocab.txt``, or the only file with a similar name, or None."""
        if self.folder.named("vocab.txt"):
            return self.folder.pick("vocab.txt")
        files = [file for file in self.folder.files if _VOCABULARY_NAME.fullmatch(file.name)]
        return files[0] if len(files) == 1 else None

    def arrange_softmax(
        self, name: str, arrays: dict[str, np.ndarray], vocabulary: PathLike
    ) -> SoftmaxFile:
        """Check the softmax, and put its rows in the order of the vocabulary.

        ``name`` is the kind and name of the file with the ``arrays``, for errors.
        """
        tokens, rows = arrange_vocabulary(read_vocabulary_lines(vocabulary), vocabulary)
        check_tensors(
            name,
            arrays,
            {"softmax/W": (len(rows), self.config.projection_dim), "softmax/b": (len(rows),)},
            fits="the options and vocabulary",
            remedy="Do options.json, vocab.txt and the softmax belong together?",
        )
        if not np.array_equal(rows, np.arange(len(rows))):
            arrays = {name: array[rows] for name, array in arrays.items()}
        return SoftmaxFile(tokens, arrays)
