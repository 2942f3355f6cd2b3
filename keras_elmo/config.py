"""The sizes and switches of a biLM, and their spelling in a bilm-tf options file."""

import dataclasses
import hashlib
import json
import numbers
import re
import reprlib
import warnings

N_CHARACTERS = 262  # padding, 256 bytes, 4 sentence and word markers, the pad character

# (section, key, field): what an options file says about the biLM.
_FIELD_OF_KEY = {
    ("char_cnn", "activation"): "activation",
    ("char_cnn", "filters"): "filters",
    ("char_cnn", "n_highway"): "n_highway",
    ("char_cnn", "max_characters_per_token"): "max_characters_per_token",
    ("char_cnn", "embedding"): "character_embedding_dim",
    ("lstm", "dim"): "lstm_dim",
    ("lstm", "projection_dim"): "projection_dim",
    ("lstm", "n_layers"): "n_layers",
    ("lstm", "cell_clip"): "cell_clip",
    ("lstm", "proj_clip"): "projection_clip",
    ("lstm", "use_skip_connections"): "use_skip_connections",
}
# The least value of every field that is a whole number.
_WHOLE = {
    "character_embedding_dim": 1,
    "max_characters_per_token": 3,
    "n_highway": 0,
    "lstm_dim": 1,
    "projection_dim": 1,
    "n_layers": 1,
}
# What a missing key means to bilm-tf; every other key is required.
_VALUE_IF_MISSING = {
    "n_highway": 0,
    "n_layers": 1,
    "cell_clip": None,
    "projection_clip": None,
    "use_skip_connections": False,
}
# What no biLM comes near, and a hostile file could ask for.
_MOST = {"max_characters_per_token": 10_000, "n_highway": 1000, "n_layers": 1000}
_CODE_POINTS = {"characters", "words", "word_dim"}
# Read by trainers only, that of bilm-tf and a rewrite of it in PyTorch: they do not change
# what the biLM computes.
_TRAINING_KEY = re.compile(
    "all_clip_norm_val|batch_size|clip_grad_norm|dropout|eval_max_batches|learning_rate"
    r"|lr_decay_\w+|max_steps|n_epochs|n_negative_samples_batch|n_tokens_vocab|n_train_tokens"
    r"|sample_softmax|steps_per_epoch|unroll_steps|\w+_every_steps"
)


# What the characters and the words of a biLM over code points start with, in this order.
SPECIAL_CHARACTERS = ("<bos>", "<eos>", "<bow>", "<eow>", "<pad>", "<oov>")
SPECIAL_WORDS = ("<bos>", "<eos>", "<oov>")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodePoints:
    """The alphabet of a biLM that reads code points of Unicode, not bytes: ELMoForManyLangs.

    Attributes:
        characters: The characters that it knows, behind ``SPECIAL_CHARACTERS``; the first
            has the id 1.
        words: The words that it knows, likewise behind ``SPECIAL_WORDS``; empty if it knows
            characters only.
        word_dim: Features per word, 0 without words.

    Raises:
        ValueError: If a value is not as above.
    """

    characters: tuple[str, ...]
    words: tuple[str, ...] = ()
    word_dim: int = 0

    def __post_init__(self):
        for name, special in (("characters", SPECIAL_CHARACTERS), ("words", SPECIAL_WORDS)):
            tokens = getattr(self, name)
            if not (isinstance(tokens, list | tuple) and all(isinstance(t, str) for t in tokens)):
                raise ValueError(
                    f"CodePoints expects {name} to be a list of text. "
                    f"Received: {name}={_shown(tokens)}"
                )
            object.__setattr__(self, name, tuple(tokens))
            if tuple(tokens[: len(special)]) != special and (tokens or name == "characters"):
                raise ValueError(
                    f"CodePoints expects {name} to start with {special}. "
                    f"Received: {name}={_shown(tokens)}"
                )
            if len(set(tokens)) < len(tokens):
                raise ValueError(f"CodePoints expects all {name} to differ. Received: one twice")
        if not _is_whole(self.word_dim, 0) or bool(self.word_dim) != bool(self.words):
            raise ValueError(
                "CodePoints expects word_dim to be a whole number, 1 or more with words and 0 "
                f"without. Received: word_dim={_shown(self.word_dim)}, {len(self.words)} words"
            )

    def __repr__(self):
        sizes = f"{len(self.characters)} characters, {len(self.words)} words"
        return f"CodePoints({sizes}, word_dim={self.word_dim})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BiLMConfig:
    """The architecture of a biLM; the defaults are the released "original" model.

    Attributes:
        filters: The convolutions of the character CNN, pairs (width in
            characters, number of filters), in the order of the weight file.
        character_embedding_dim: Features per character.
        max_characters_per_token: Longest row of character ids, both word
            markers included.
        activation: ``"relu"`` or ``"tanh"``, behind the max-pool of the character CNN.
        n_highway: Highways behind the max-pool, 0 or more.
        lstm_dim: Features of an LSTM's cell state.
        projection_dim: Features of an LSTM's output in one direction, and of
            the token representation. Equal to ``lstm_dim`` there is no projection.
        n_layers: LSTM layers in each direction.
        cell_clip: Bound on the absolute cell state, or None.
        projection_clip: Bound on the absolute projected output, or None.
        use_skip_connections: Whether the layers from the second up add their input
            to their output.
        code_points: The ``CodePoints`` that it reads instead of bytes, or None.

    Raises:
        ValueError: If a value is out of its range; the error names all of them.

    Example:

    >>> small = BiLMConfig(lstm_dim=1024, projection_dim=128, n_highway=1)
    >>> BiLMConfig.from_options(small.to_options()) == small
    True

    Reference:
        Peters et al., 2018, section 3 and 3.4, https://arxiv.org/abs/1802.05365
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

    def __post_init__(self):
        problems = [
            f"{name} must be a whole number, {least} or more. Received: {name}={_shown(value)}"
            for name, least in _WHOLE.items()
            if not _is_whole(value := getattr(self, name), least)
        ]
        problems += [
            f"{name} must be {most} or less. Received: {name}={_shown(getattr(self, name))}"
            for name, most in _MOST.items()
            if _is_whole(getattr(self, name), most + 1)
        ]
        problems += [
            f"{name} must be a positive number or None. Received: {name}={_shown(value)}"
            for name in ("cell_clip", "projection_clip")
            if not _is_clip(value := getattr(self, name))
        ]
        if self.activation not in ("relu", "tanh"):
            problems.append(
                "activation must be 'relu' or 'tanh'. "
                f"Received: activation={_shown(self.activation)}"
            )
        if not isinstance(self.use_skip_connections, bool):
            problems.append(
                "use_skip_connections must be True or False. "
                f"Received: use_skip_connections={_shown(self.use_skip_connections)}"
            )
        if not isinstance(self.code_points, CodePoints | None):
            problems.append(
                "code_points must be CodePoints or None. "
                f"Received: code_points={_shown(self.code_points)}"
            )
        if _are_filters(self.filters):
            pairs = tuple((int(width), int(count)) for width, count in self.filters)
            object.__setattr__(self, "filters", pairs)
        else:
            problems.append(
                "filters must be pairs (width, count) of whole numbers, 1 or more. "
                f"Received: filters={_shown(self.filters)}"
            )
        if not problems:
            for name in _WHOLE:  # NumPy integers come in, JSON goes out
                object.__setattr__(self, name, int(getattr(self, name)))
            for name in ("cell_clip", "projection_clip"):
                clip = getattr(self, name)
                object.__setattr__(self, name, clip if clip is None else float(clip))
            problems = self._contradictions()
        if problems:
            raise ValueError("BiLMConfig: " + "; ".join(problems))

    def _contradictions(self):
        problems = []
        if self.widest_filter > self.max_characters_per_token:
            problems.append(
                "no filter may be wider than max_characters_per_token. "
                f"Received: filters={_shown(self.filters)}, "
                f"max_characters_per_token={self.max_characters_per_token}"
            )
        if self.projection_dim > self.lstm_dim:
            problems.append(
                "projection_dim must not exceed lstm_dim, or the layers would differ in width. "
                f"Received: projection_dim={self.projection_dim}, lstm_dim={self.lstm_dim}"
            )
        return problems

    @property
    def widest_filter(self) -> int:
        """Width of the widest convolution, in characters."""
        return max(width for width, _ in self.filters)

    @property
    def n_filters(self) -> int:
        """Features behind the max-pool: the sum of the filter counts."""
        return sum(count for _, count in self.filters)

    @property
    def n_characters(self) -> int:
        """Number of character ids, padding included."""
        return N_CHARACTERS if self.code_points is None else len(self.code_points.characters) + 1

    @property
    def has_projection(self) -> bool:
        """Whether the character CNN ends in a linear projection."""
        return self.n_filters != self.projection_dim or self.code_points is not None

    @classmethod
    def from_options(cls, options: dict, origin=None) -> "BiLMConfig":
        """Read the content of a bilm-tf ``options.json``.

        Args:
            options: The decoded JSON object. Keys that only a training reads are
                ignored; other unknown keys beside ``char_cnn`` and ``lstm`` too, with
                a warning.
            origin: Name of the file that the options come from, for errors.

        Returns:
            The ``BiLMConfig``.

        Raises:
            ValueError: If keys are missing, or unknown in ``char_cnn`` or ``lstm`` (all
                of them are named), or if a value is not one that a biLM over
                characters can have.
        """
        if origin is None:
            return cls._from_options(options, "the options")
        try:
            return cls._from_options(options, f"options file {origin}")
        except ValueError as error:
            raise ValueError(f"Options file {origin}: {error}") from None

    @classmethod
    def _from_options(cls, options, name):
        if not isinstance(options, dict):
            raise ValueError(
                "BiLMConfig expects the options as a JSON object. "
                f"Received: {type(options).__name__}"
            )
        fields, unknown = {}, []
        for key, value in options.items():
            if key in ("char_cnn", "lstm"):
                if not isinstance(value, dict):
                    raise ValueError(
                        f"BiLMConfig expects '{key}' in the options to be a JSON object. "
                        f"Received: {key}={_shown(value)}"
                    )
                for inner, setting in value.items():
                    if (key, inner) in _FIELD_OF_KEY:
                        fields[_FIELD_OF_KEY[key, inner]] = setting
                    elif (key, inner) != ("char_cnn", "n_characters"):
                        unknown.append(f"{key}.{inner}")
            elif key == "code_points":
                if not isinstance(value, dict) or not set(value) <= _CODE_POINTS:
                    raise ValueError(
                        "BiLMConfig expects 'code_points' in the options to have characters, words "
                        f"and word_dim. Received: code_points={_shown(value)}"
                    )
                fields["code_points"] = CodePoints(**{"characters": (), **value})
            elif key == "bidirectional":
                if value is not True:
                    raise ValueError(
                        "BiLMConfig expects a biLM that reads in both directions. "
                        f"Received: bidirectional={_shown(value)}"
                    )
            elif key == "share_embedding_softmax":
                if value is not False:
                    raise ValueError(
                        "BiLMConfig expects a biLM over characters, whose softmax has weights of "
                        f"its own. Received: share_embedding_softmax={_shown(value)}"
                    )
            elif not _TRAINING_KEY.fullmatch(str(key)):
                warnings.warn(
                    f"BiLMConfig ignores the unknown key {str(key)[:60]!r} of {name}", stacklevel=4
                )
        missing = [
            f"{section}.{key}"
            for (section, key), field in _FIELD_OF_KEY.items()
            if field not in fields and field not in _VALUE_IF_MISSING
        ]
        if unknown or missing:
            raise ValueError(
                "BiLMConfig expects the options of a bilm-tf biLM over characters. "
                f"Received: missing keys {missing}, unknown keys {_shown(unknown)}"
            )
        n_characters = options["char_cnn"].get("n_characters", N_CHARACTERS)
        if "code_points" in fields:
            if n_characters != len(fields["code_points"].characters) + 1:
                raise ValueError(
                    "BiLMConfig expects char_cnn.n_characters to be one more than the characters "
                    f"of code_points. Received: n_characters={_shown(n_characters)}, for "
                    f"{fields['code_points']}"
                )
        elif n_characters not in (N_CHARACTERS - 1, N_CHARACTERS):
            raise ValueError(
                f"BiLMConfig expects char_cnn.n_characters to be {N_CHARACTERS - 1} (in training) "
                f"or {N_CHARACTERS} (in use). Received: n_characters={_shown(n_characters)}. A "
                "biLM over another alphabet than the bytes of UTF-8 is another model"
            )
        embedding = fields["character_embedding_dim"]
        if not isinstance(embedding, dict) or set(embedding) != {"dim"}:
            raise ValueError(
                "BiLMConfig expects char_cnn.embedding to be an object with the one key 'dim'. "
                f"Received: embedding={_shown(embedding)}"
            )
        fields["character_embedding_dim"] = embedding["dim"]
        if fields.get("n_highway", 0) is None:
            fields["n_highway"] = 0
        return cls(**(_VALUE_IF_MISSING | fields))

    def to_options(self) -> dict:
        """Return the options as bilm-tf and AllenNLP read them, ready for ``json.dump``."""
        options: dict = {"char_cnn": {"n_characters": self.n_characters}, "lstm": {}}
        for (section, key), field in _FIELD_OF_KEY.items():
            options[section][key] = getattr(self, field)
        options["char_cnn"]["filters"] = [list(pair) for pair in self.filters]
        options["char_cnn"]["embedding"] = {"dim": self.character_embedding_dim}
        if self.code_points is not None:
            options["code_points"] = {
                "characters": list(self.code_points.characters),
                "words": list(self.code_points.words),
                "word_dim": self.code_points.word_dim,
            }
        return options

    def digest(self) -> str:
        """Return the SHA-256 of the options, in hexadecimal."""
        return hashlib.sha256(json.dumps(self.to_options(), sort_keys=True).encode()).hexdigest()


def _shown(value):
    """Return a value as text of bounded length, however long or nested it is."""
    short = reprlib.Repr()
    short.maxlist = short.maxdict = 20
    short.maxstring = short.maxlong = short.maxother = 200
    return short.repr(value)


def _is_whole(value, least):
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and value >= least


def _is_clip(value):
    return value is None or (
        isinstance(value, numbers.Real) and not isinstance(value, bool) and 0 < value < float("inf")
    )


def _are_filters(value):
    return (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(
            isinstance(pair, list | tuple)
            and len(pair) == 2
            and all(_is_whole(size, 1) for size in pair)
            for pair in value
        )
    )
