"""The sizes and switches of a biLM, and its options file in the layout of bilm-tf."""

import dataclasses
import functools
import hashlib
import json
from typing import Any

from keras_elmo.alphabets import (
    N_CHARACTERS,
    Alphabet,
    ByteAlphabet,
    CodePointAlphabet,
    CodePoints,
)
from keras_elmo.utils.checks import (
    FieldTable,
    check_fields,
    invalid,
    is_number,
    is_whole,
    shorten,
)

DIRECTIONS = ("forward", "backward")


def _is_size(value: Any) -> bool:
    return is_whole(value, 1) and value <= 10**6


def _are_filters(value: Any) -> bool:
    try:
        return len(value) > 0 and all(is_whole(w, 1) and _is_size(n) for w, n in value)
    except (TypeError, ValueError):  # not pairs
        return False


# The bounds are far above every biLM; larger numbers in a damaged or hostile file would exhaust
# the memory.
_FIELDS: FieldTable = [
    ("filters", _are_filters, "pairs (width, count) of whole numbers, 1 to 1000000"),
    ("lstm_dim projection_dim character_embedding_dim", _is_size, "whole, 1 to 1000000"),
    ("max_characters_per_token", lambda x: is_whole(x, 3) and x <= 10**4, "whole, 3 to 10000"),
    ("n_highway", lambda x: is_whole(x) and x <= 1000, "whole, 0 to 1000"),
    ("n_layers", lambda x: is_whole(x, 1) and x <= 1000, "whole, 1 to 1000"),
    ("cell_clip projection_clip", lambda x: x is None or is_number(x, above=0), "above 0, or None"),
    ("activation", ("relu", "tanh").__contains__, "'relu' or 'tanh'"),
    ("use_skip_connections", lambda x: isinstance(x, bool), "True or False"),
    ("code_points", lambda x: isinstance(x, CodePoints | None), "CodePoints or None"),
]

# The attribute of BiLMConfig for each key of an options file.
_ATTRIBUTES = {
    "char_cnn.activation": "activation",
    "char_cnn.filters": "filters",
    "char_cnn.n_highway": "n_highway",
    "char_cnn.max_characters_per_token": "max_characters_per_token",
    "char_cnn.embedding.dim": "character_embedding_dim",
    "lstm.dim": "lstm_dim",
    "lstm.projection_dim": "projection_dim",
    "lstm.n_layers": "n_layers",
    "lstm.cell_clip": "cell_clip",
    "lstm.proj_clip": "projection_clip",
    "lstm.use_skip_connections": "use_skip_connections",
}
# The defaults of bilm-tf for keys that are missing or null. All other keys are required.
_DEFAULTS = {
    "n_highway": 0,
    "n_layers": 1,
    "cell_clip": None,
    "projection_clip": None,
    "use_skip_connections": False,
}
# Keys that some trainers write, each with the only values that keras-elmo supports.
_FIXED: dict[str, tuple] = {
    # bilm-tf writes 261 for training. Its users write 262 afterwards, with the padding id 0.
    "char_cnn.n_characters": (N_CHARACTERS - 1, N_CHARACTERS),
    "bidirectional": (True,),
    "reverse": (False,),
    "share_embedding_softmax": (False,),
    "char_cnn.projection_after_highway": (True,),
    "char_cnn.projection_location": ("after_highway",),
    "char_cnn.do_layer_norm": (False,),
    "lstm.bidirectional": (True,),
    "lstm.activation": ("tanh",),
    "lstm.forget_bias": (1,),
    "lstm.use_peepholes": (False,),
    "lstm.do_layer_norm": (False,),
}
# Settings of a training that a rewrite of bilm-tf in PyTorch writes into ``char_cnn`` and ``lstm``.
_TRAINING_KEYS = ("char_cnn.dropout", "lstm.dropout")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiLMConfig:
    """The architecture of a biLM. The defaults describe the released "original" model.

    Attributes:
        filters: tuple of pairs of int. Width in characters and number of filters of each
            convolution of the character CNN, in the order of the weight file.
        character_embedding_dim: int. Features of a character embedding.
        max_characters_per_token: int. Largest number of character ids of a token, begin and
            end marker included.
        activation: str. ``"relu"`` or ``"tanh"``, applied after the max-pool of the
            character CNN.
        n_highway: int. Highway layers of the character CNN, 0 or more.
        lstm_dim: int. Features of the cell state of an LSTM.
        projection_dim: int. Features of the output of one LSTM, and of the token
            representation. If it equals ``lstm_dim``, the LSTMs have no projection.
        n_layers: int. LSTM layers in each direction.
        cell_clip: float or None. Bound on the absolute cell state.
        projection_clip: float or None. Bound on the absolute projected output.
        use_skip_connections: bool. Whether each layer from the second up adds its input to
            its output.
        code_points: ``CodePoints`` or None. None for a biLM that reads the bytes of UTF-8, as in
            the paper. For a biLM of ELMoForManyLangs, the characters and words that it knows.

    Raises:
        ValueError: If attributes are invalid; the error names all of them.

    Examples:
        >>> small = BiLMConfig(lstm_dim=1024, projection_dim=128, n_highway=1)
        >>> BiLMConfig.from_options(small.to_options()) == small
        True

    Reference:
        Peters et al., 2018, sections 3 and 3.4, https://arxiv.org/abs/1802.05365
    """

    filters: tuple[tuple[int, int], ...] = (
        (1, 32),
        (2, 32),
        (3, 64),
        (4, 128),
        (5, 256),
        (6, 512),
        (7, 1024),
    )
    character_embedding_dim: int = 16
    max_characters_per_token: int = 50
    activation: str = "relu"
    n_highway: int = 2
    lstm_dim: int = 4096
    projection_dim: int = 512
    n_layers: int = 2
    cell_clip: float | None = 3.0
    projection_clip: float | None = 3.0
    use_skip_connections: bool = True
    code_points: CodePoints | None = None

    def __post_init__(self) -> None:
        check_fields(self, _FIELDS)
        # Convert JSON lists and whole numbers, so that equal configs have equal options.
        filters = tuple((int(width), int(count)) for width, count in self.filters)
        object.__setattr__(self, "filters", filters)
        for name in ("cell_clip", "projection_clip"):
            clip = getattr(self, name)
            object.__setattr__(self, name, None if clip is None else float(clip))
        if self.widest_filter > self.max_characters_per_token:
            raise invalid(
                "BiLMConfig expects no filter wider than max_characters_per_token",
                f"filters={shorten(self.filters)}, "
                f"max_characters_per_token={self.max_characters_per_token}",
            )
        if self.projection_dim > self.lstm_dim:  # bilm-tf projects to smaller sizes only
            raise invalid(
                "BiLMConfig expects a projection_dim of at most lstm_dim, or the layers would "
                "differ in width",
                f"projection_dim={self.projection_dim}, lstm_dim={self.lstm_dim}",
            )

    @functools.cached_property
    def alphabet(self) -> Alphabet:
        """The ``Alphabet`` that turns tokens into the ids that the biLM reads."""
        if self.code_points is None:
            return ByteAlphabet(self.max_characters_per_token)
        return CodePointAlphabet(self.code_points, self.max_characters_per_token)

    @property
    def lstm_names(self) -> list[str]:
        """Names of the LSTMs: ``forward_1`` .. ``forward_L``, ``backward_1`` .. ``backward_L``."""
        return [f"{d}_{layer}" for d in DIRECTIONS for layer in range(1, self.n_layers + 1)]

    @property
    def widest_filter(self) -> int:
        """Width of the widest convolution, in characters."""
        return max(width for width, _ in self.filters)

    @property
    def n_filters(self) -> int:
        """Number of all filters: the features after the max-pool."""
        return sum(count for _, count in self.filters)

    @property
    def n_characters(self) -> int:
        """Number of different character ids, 0 included."""
        return self.alphabet.n_characters

    @property
    def has_projection(self) -> bool:
        """Whether the character CNN (not the LSTMs) ends in a linear projection.

        bilm-tf projects if ``n_filters`` differs from ``projection_dim``. ELMoForManyLangs always
        projects.
        """
        return self.n_filters != self.projection_dim or self.code_points is not None

    @classmethod
    def from_options(cls, options: dict, origin: object = None) -> "BiLMConfig":
        """Read the content of a bilm-tf ``options.json``.

        Only ``char_cnn``, ``lstm`` and ``code_points`` describe a biLM. Other settings are
        ignored, unless they ask for an architecture that keras-elmo does not support.

        Args:
            options: dict. The decoded JSON object.
            origin: str or path. Name of the options file, for errors; or None.

        Returns:
            The ``BiLMConfig``.

        Raises:
            ValueError: If keys are missing, keys in ``char_cnn`` or ``lstm`` are unknown, or a
                value is invalid or not supported.
        """
        place = "" if origin is None else f"Options file {origin}: "
        try:
            return cls(**_parse_options(options))
        except ValueError as error:
            raise ValueError(f"{place}{error}") from None

    def to_options(self) -> dict:
        """Return the options that bilm-tf and AllenNLP read, ready for ``json.dump``."""
        options: dict = {"char_cnn": {"n_characters": self.n_characters}}
        for path, name in _ATTRIBUTES.items():
            *sections, key = path.split(".")
            section = options
            for title in sections:
                section = section.setdefault(title, {})
            section[key] = getattr(self, name)
        options["char_cnn"]["filters"] = [list(pair) for pair in self.filters]
        if self.code_points is not None:
            options["code_points"] = dataclasses.asdict(self.code_points)
        return options

    def digest(self) -> str:
        """Return the SHA-256 of the options, in hexadecimal."""
        return hashlib.sha256(json.dumps(self.to_options(), sort_keys=True).encode()).hexdigest()


def _parse_options(options: object) -> dict[str, Any]:
    """Return the arguments of ``BiLMConfig`` for the content of an options file."""
    if not isinstance(options, dict):
        raise invalid(
            "BiLMConfig expects the options as a JSON object", f"{type(options).__name__}"
        )
    values, fixed = _flatten(options), _FIXED
    arguments = _DEFAULTS | {n: values.pop(k) for k, n in _ATTRIBUTES.items() if k in values}
    if options.get("code_points") is not None:
        code_points = CodePoints.from_options(options["code_points"])
        arguments["code_points"] = code_points
        n_ids = len(code_points.characters) + 1  # with the id 0
        fixed = {**_FIXED, "char_cnn.n_characters": (n_ids,)}
    for key, expected in fixed.items():
        value = values.pop(key, expected[0])
        if value not in expected:
            raise invalid(
                f"BiLMConfig expects {key} to be {' or '.join(map(repr, expected))}",
                f"{key}={shorten(value)}",
                "Models with other values are not supported",
            )
    missing = [key for key, name in _ATTRIBUTES.items() if name not in arguments]
    in_sections = [key for key in values if key.split(".")[0] in ("char_cnn", "lstm")]
    unknown = [key for key in in_sections if key not in _TRAINING_KEYS]
    if missing or unknown:
        raise invalid(
            "BiLMConfig expects the options of a bilm-tf biLM over characters",
            f"missing keys {missing}, unknown keys {shorten(unknown)}",
        )
    return arguments


def _flatten(options: dict, prefix: str = "") -> dict[str, Any]:
    """Return the values by paths such as ``lstm.dim``, without null."""
    values: dict[str, Any] = {}
    for key, value in options.items():
        if isinstance(value, dict):
            values |= _flatten(value, f"{prefix}{key}.")
        elif value is not None:
            values[f"{prefix}{key}"] = value
    return values
