"""The base class of the formats, and the results of reading a preset."""

import abc
import dataclasses
import functools
import re
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.bilm_weights import bilm_mapping
from keras_elmo.formats.checks import check_tensors
from keras_elmo.formats.folder import Folder, PresetFile, base_name
from keras_elmo.formats.vocabulary import arrange_vocabulary
from keras_elmo.formats.weight_mapping import (
    WeightMapping,
    expected_shapes,
    extract,
    fingerprint,
    load,
)
from keras_elmo.utils.files import PathLike, read_options, read_vocabulary_lines

OPTIONS_NAMES = "*options.json or options_file"
# bilm-tf's own model has vocab-2016-09-10.txt, and simple_elmo reads vocab.txt.gz.
_VOCABULARY_NAME = re.compile(r".*vocab.*\.txt(\.gz)?", re.IGNORECASE)
# The released models have the defaults of these options. The shapes of tensors do not show them.
_HIDDEN_OPTIONS = (
    "activation max_characters_per_token cell_clip projection_clip use_skip_connections".split()
)


@dataclasses.dataclass(frozen=True, eq=False)
class BiLMFile:
    """The options and the weights of a biLM, which fit together.

    The ``mapping`` says which variables the ``arrays`` belong to; None stands for the layout of
    bilm-tf's hdf5 files.
    """

    config: BiLMConfig
    arrays: dict[str, np.ndarray]
    file_name: str
    mapping: WeightMapping | None = None

    @property
    def n_parameters(self) -> int:
        """Number of values in our variables. They include a character embedding for padding."""
        return sum(array.size for array in self.values().values())

    def fingerprint(self, dtype: str = "float32") -> str:
        """Return the fingerprint of variables of a dtype with these weights."""
        values = self.values()
        if dtype != "float32":
            import ml_dtypes  # Keras requires it; NumPy knows bfloat16 once it is imported

            numpy_dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
            values = {p: a.astype("float32").astype(numpy_dtype) for p, a in values.items()}
        return fingerprint(values)

    def assign(self, variables: Mapping[str, Any]) -> None:
        """Copy the weights into the variables of a biLM with the same config, by path."""
        for tensor in self._mapping:
            # One by one, so that the copies of two tensors never coexist.
            for path, array in load([tensor], self.arrays).items():
                variables[path].assign(array)

    def values(self) -> dict[str, np.ndarray]:
        """Return the weights by the paths of the biLM's variables."""
        return load(self._mapping, self.arrays)

    def bilm_arrays(self) -> dict[str, np.ndarray]:
        """Return the weights as float32, by their names in bilm-tf's hdf5 files."""
        return extract(bilm_mapping(self.config), self.values())

    @property
    def _mapping(self) -> WeightMapping:
        return self.mapping or bilm_mapping(self.config, self.arrays)


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
        tokenizer: str or None. The ``WordTokenizer`` of its released models.
        tokens: str. The tokens of its released models, in words.
    """

    name = ""
    tokenizer: str | None = None
    tokens = ""

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
        """The config. If the files contain options, the weights are not read for it."""
        options, place = self.options
        if options is None:
            return self.infer_config()
        is_file = not isinstance(self.given_options, dict)
        return BiLMConfig.from_options(options, place if is_file else None)

    @functools.cached_property
    def options(self) -> tuple[Any, object]:
        """The options, given or in the files, and their place for errors; or None and None."""
        if isinstance(self.given_options, dict):
            return self.given_options, "in options="
        if self.given_options is not None:
            return read_options(self.given_options), self.given_options
        return self.read_options()

    def read_options(self) -> tuple[Any, object]:
        """Read the options in the files.

        A container with its options inside overrides this.

        Returns:
            The content of an ``options.json``, and its place for errors. Without options None
            and None.
        """
        file = self.options_file()
        return (None, None) if file is None else (read_options(file), file)

    def options_file(self) -> PresetFile | None:
        """Return the options file, or None."""
        names = self.folder.ending("options.json") or self.folder.named("options_file")
        return self.folder.pick(OPTIONS_NAMES, names) if names else None

    def infer_config(self) -> BiLMConfig:
        """Infer the config from the tensors, if there are no options. By default this fails."""
        raise self.folder.refusal(OPTIONS_NAMES, [])

    # The weights.

    @property
    @abc.abstractmethod
    def source(self) -> str:
        """Kind and name of the file with the weights, for errors."""

    @property
    @abc.abstractmethod
    def tensors(self) -> Mapping[str, Any]:
        """All tensors by name. The values are arrays, or what ``read_tensors`` replaces."""

    @abc.abstractmethod
    def mapping(self) -> WeightMapping:
        """Return which tensors belong to which variables of the biLM."""

    def read_tensors(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Read some of the ``tensors`` by name."""
        return {name: self.tensors[name] for name in names}

    def belongs_to_bilm(self, name: str) -> bool:
        """Return whether a tensor is part of a biLM, so that it is an error not to use it."""
        return True

    def more_names(self) -> set[str]:
        """Return the names of tensors that are used and are not part of the biLM."""
        return set()

    def read(self) -> BiLMFile:
        """Read the biLM."""
        mapping, more = self.mapping(), self.more_names()
        expected = expected_shapes(mapping)
        names = [n for n in self.tensors if n in expected or self.belongs_to_bilm(n)]
        arrays = self.read_tensors(name for name in names if name not in more)
        check_tensors(self.source, arrays, expected)
        return BiLMFile(self.config, arrays, self.source, mapping)

    def tensor_names(self) -> tuple[list[str], list[str]]:
        """Return the names of the tensors that are used, and the names of all others."""
        used = {*expected_shapes(self.mapping()), *self.more_names()}
        return sorted(used), sorted(self.tensors.keys() - used)

    # What some files contain beside the biLM.

    def read_mixes(self) -> list[Mix]:
        """Read the scalar mixes."""
        return []

    def read_softmax(self) -> SoftmaxFile | None:
        """Read the softmax and its vocabulary. Return None if the files contain no softmax."""
        return None

    def vocabulary_file(self) -> PresetFile | None:
        """Return ``vocab.txt``, or the only file with a similar name, or None."""
        if self.folder.named("vocab.txt"):
            return self.folder.pick("vocab.txt")
        names = [n for n in self.folder.names if _VOCABULARY_NAME.fullmatch(base_name(n))]
        return self.folder.file(names[0]) if len(names) == 1 else None

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

    def config_of(self, **known: Any) -> BiLMConfig:
        """Return a config of the known fields. Warn about fields of the released models."""
        assumed = {n: getattr(BiLMConfig, n) for n in _HIDDEN_OPTIONS if n not in known}
        if assumed:
            shown = ", ".join(f"{name}={value!r}" for name, value in assumed.items())
            warnings.warn(
                f"{self.name} {self.folder.path} does not contain all options of its biLM. The "
                f"options of the released models are used: {shown}. Pass options= (--options) if "
                "the biLM has others",
                stacklevel=5,
            )
        try:
            return BiLMConfig(**known | assumed)
        except ValueError as error:
            raise ValueError(f"{self.source} does not contain a biLM. {error}") from None
