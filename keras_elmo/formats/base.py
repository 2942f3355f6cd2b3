"""What every source of a biLM gives, and what it falls back on where it holds nothing."""

import abc
import dataclasses
import functools
import warnings

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.bilm_files import BiLMFile
from keras_elmo.formats.files import Files
from keras_elmo.utils.files import LARGEST_OPTIONS, read_lines, read_options

OPTIONS_NAMES = "*options.json or options_file"
# What shapes of tensors do not tell: the values of the released models.
RELEASED = {
    "activation": "relu",
    "max_characters_per_token": 50,
    "cell_clip": 3.0,
    "projection_clip": 3.0,
    "use_skip_connections": True,
}


@dataclasses.dataclass(frozen=True)
class Mix:
    """A learned scalar mix.

    Attributes:
        scalars: Of each layer, before the softmax.
        gamma: The factor behind it.
        layer_norm: Whether the layers are normalised first.
    """

    scalars: tuple[float, ...]
    gamma: float
    layer_norm: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class SoftmaxFile:
    """What a source has beyond the biLM to be a language model.

    Attributes:
        vocabulary: Tokens, a row each.
        arrays: ``softmax/W``, shape ``(tokens, projection_dim)``, and ``softmax/b``.
        origin: Name of the vocabulary's file, for errors.
    """

    vocabulary: list
    arrays: dict
    origin: str


class Source(abc.ABC):
    """A container of a biLM; a subclass for each format.

    Args:
        files: The ``Files``.
        options: What stands in place of the container's own options: a dict, or the path of a
            JSON file; None for its own.

    Attributes:
        kind: What the format is called.
    """

    kind = ""

    def __init__(self, files: Files, options=None):
        self.files = files
        self.given_options = options

    @classmethod
    @abc.abstractmethod
    def recognises(cls, files: Files) -> bool:
        """Tell by the names of files whether they are of this format."""

    def read_config(self) -> BiLMConfig:
        """Read the sizes and switches only."""
        return self._config

    @functools.cached_property
    def _config(self):
        options, origin = self.read_options()
        return self.infer_config() if options is None else BiLMConfig.from_options(options, origin)

    def infer_config(self) -> BiLMConfig:
        """Return what the tensors tell of the config, if a format's do; there are no options."""
        return BiLMConfig.from_options(*self.options_of(self.files.pick(OPTIONS_NAMES)))

    @abc.abstractmethod
    def read(self) -> BiLMFile:
        """Read the biLM."""

    def read_mixes(self) -> list[Mix]:
        """Read the scalar mixes."""
        return []

    def read_softmax(self) -> SoftmaxFile | None:
        """Read the softmax and its vocabulary; None if there are none."""
        return None

    @abc.abstractmethod
    def tensors(self) -> tuple[list[str], list[str]]:
        """Return the names of all tensors that are read, and of those that are left."""

    def read_options(self):
        """Return the options that were given, or else the source's own, and their name.

        Both are None if there are none.
        """
        if isinstance(self.given_options, dict):
            return self.given_options, "options="
        if self.given_options is not None:
            return read_options(self.given_options), str(self.given_options)
        files = self.files
        own = files.ending("options.json") or files.named("options_file")
        return self.options_of(files.pick(OPTIONS_NAMES, own)) if own else (None, None)

    def options_of(self, name):
        """Return the options in one of the files, and its name."""
        origin = self.files.origin(name)
        return read_options(self.files.file(name, LARGEST_OPTIONS), origin), origin

    def read_vocabulary(self):
        """Return the lines of ``vocab.txt`` and its name; None and None if there is none."""
        names = self.files.named("vocab.txt")
        if not names:
            return None, None
        origin = self.files.origin(self.files.pick("vocab.txt", names))
        return read_lines(self.files.file(names[0]), origin), origin

    def make_config(self, origin, **known) -> BiLMConfig:
        """Return a config of known fields, and for the rest, with a warning, the released ones."""
        assumed = {name: value for name, value in RELEASED.items() if name not in known}
        if assumed:
            told = ", ".join(f"{name}={value!r}" for name, value in assumed.items())
            warnings.warn(
                f"{self.kind} {self.files.path} does not hold all options of its biLM. Taken are "
                f"those of the released models: {told}. Pass options= (--options) if it has others",
                stacklevel=5,
            )
        try:
            return BiLMConfig(**known | assumed)
        except ValueError as error:
            raise ValueError(f"{self.kind} {origin} is not that of a biLM. {error}") from None
