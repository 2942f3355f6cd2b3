"""The sizes and switches of a biLM."""

import dataclasses
import functools
import hashlib
import json

from keras_elmo.alphabets import Alphabet, ByteAlphabet, CodePointAlphabet, CodePoints
from keras_elmo.options import format_options, parse_options
from keras_elmo.utils.checks import is_number, is_whole, shorten

# The least value of each attribute that is a whole number.
_LEAST = {
    "character_embedding_dim": 1,
    "max_characters_per_token": 3,
    "n_highway": 0,
    "lstm_dim": 1,
    "projection_dim": 1,
    "n_layers": 1,
}
# Far above every biLM; larger numbers in a damaged or hostile file would exhaust the memory.
_MOST = {"max_characters_per_token": 10_000, "n_highway": 1000, "n_layers": 1000}
_CLIPS = ("cell_clip", "projection_clip")


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
        problems = self._invalid_attributes() or self._contradictions()
        if problems:
            raise ValueError("BiLMConfig: " + "; ".join(problems))
        # Convert NumPy numbers and JSON lists, so that equal configs compare equal.
        filters = tuple((int(width), int(count)) for width, count in self.filters)
        object.__setattr__(self, "filters", filters)
        for name in _LEAST:
            object.__setattr__(self, name, int(getattr(self, name)))
        for name in _CLIPS:
            clip = getattr(self, name)
            object.__setattr__(self, name, None if clip is None else float(clip))

    @functools.cached_property
    def alphabet(self) -> Alphabet:
        """The ``Alphabet`` that turns tokens into the ids that the biLM reads."""
        if self.code_points is None:
            return ByteAlphabet(self.max_characters_per_token)
        return CodePointAlphabet(self.code_points, self.max_characters_per_token)

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

        Settings of a training are ignored. Other unknown keys next to ``char_cnn`` and
        ``lstm`` are ignored with a warning.

        Args:
            options: dict. The decoded JSON object.
            origin: str or path. Name of the options file, for errors; or None.

        Returns:
            The ``BiLMConfig``.

        Raises:
            ValueError: If keys are missing, or keys in ``char_cnn`` or ``lstm`` are unknown,
                or a value is invalid. The error names all such keys.
        """
        try:
            return cls(**parse_options(options, origin))
        except ValueError as error:
            if origin is None:
                raise
            raise ValueError(f"Options file {origin}: {error}") from None

    def to_options(self) -> dict:
        """Return the options that bilm-tf and AllenNLP read, ready for ``json.dump``."""
        return format_options(self)

    def digest(self) -> str:
        """Return the SHA-256 of the options, in hexadecimal."""
        return hashlib.sha256(json.dumps(self.to_options(), sort_keys=True).encode()).hexdigest()

    def _invalid_attributes(self) -> list[str]:
        problems = []

        def expect(is_valid: bool, name: str, what: str) -> None:
            if not is_valid:
                value = shorten(getattr(self, name))
                problems.append(f"{name} must be {what}. Received: {name}={value}")

        for name, least in _LEAST.items():
            value = getattr(self, name)
            expect(is_whole(value, least), name, f"a whole number, {least} or more")
        for name, most in _MOST.items():
            expect(not is_whole(getattr(self, name), most + 1), name, f"{most} or less")
        for name in _CLIPS:
            clip = getattr(self, name)
            expect(clip is None or is_number(clip, above=0), name, "a positive number or None")
        expect(self.activation in ("relu", "tanh"), "activation", "'relu' or 'tanh'")
        is_switch = isinstance(self.use_skip_connections, bool)
        expect(is_switch, "use_skip_connections", "True or False")
        is_alphabet = isinstance(self.code_points, CodePoints | None)
        expect(is_alphabet, "code_points", "CodePoints or None")
        pairs = "pairs (width, count) of whole numbers, 1 or more"
        expect(_are_filters(self.filters), "filters", pairs)
        return problems

    def _contradictions(self) -> list[str]:
        problems = []
        if self.widest_filter > self.max_characters_per_token:
            problems.append(
                "no filter may be wider than max_characters_per_token. "
                f"Received: filters={shorten(self.filters)}, "
                f"max_characters_per_token={self.max_characters_per_token}"
            )
        if self.projection_dim > self.lstm_dim:  # bilm-tf projects to smaller sizes only
            problems.append(
                "projection_dim must not exceed lstm_dim, or the layers would differ in width. "
                f"Received: projection_dim={self.projection_dim}, lstm_dim={self.lstm_dim}"
            )
        return problems


def _are_filters(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(
            isinstance(pair, list | tuple)
            and len(pair) == 2
            and all(is_whole(size, 1) for size in pair)
            for pair in value
        )
    )
