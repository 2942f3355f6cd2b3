"""The options file of a biLM, in the layout of bilm-tf: ``options.json``."""

import re
import warnings
from typing import Any

from keras_elmo.alphabets import N_CHARACTERS, CodePoints
from keras_elmo.utils.checks import shorten

# The attribute of BiLMConfig for each section and key of an options file.
_ATTRIBUTES = {
    "char_cnn.activation": "activation",
    "char_cnn.filters": "filters",
    "char_cnn.n_highway": "n_highway",
    "char_cnn.max_characters_per_token": "max_characters_per_token",
    "char_cnn.embedding": "character_embedding_dim",
    "lstm.dim": "lstm_dim",
    "lstm.projection_dim": "projection_dim",
    "lstm.n_layers": "n_layers",
    "lstm.cell_clip": "cell_clip",
    "lstm.proj_clip": "projection_clip",
    "lstm.use_skip_connections": "use_skip_connections",
}
# The defaults of bilm-tf for keys that may be missing. All other keys are required.
_DEFAULTS = {
    "n_highway": 0,
    "n_layers": 1,
    "cell_clip": None,
    "projection_clip": None,
    "use_skip_connections": False,
}
# Keys that some trainers write. Each has the only value that keras-elmo supports, and its meaning.
_FIXED = {
    "bidirectional": (True, "a biLM that reads in both directions"),
    "reverse": (False, "a biLM whose forward direction reads from the first token"),
    "share_embedding_softmax": (False, "a biLM over characters, whose softmax shares no weights"),
    "char_cnn.projection_after_highway": (True, "the projection after the highway layers"),
    "char_cnn.projection_location": ("after_highway", "the projection after the highway layers"),
    "char_cnn.do_layer_norm": (False, "a character CNN without layer normalization"),
    "lstm.bidirectional": (True, "LSTMs in both directions"),
    "lstm.activation": ("tanh", "LSTMs with the activation tanh"),
    "lstm.forget_bias": (1, "LSTMs that add 1 to the forget gate"),
    "lstm.use_peepholes": (False, "LSTMs without peepholes"),
    "lstm.do_layer_norm": (False, "LSTMs without layer normalization"),
}
# Settings of the trainers of bilm-tf and of its rewrite in PyTorch. They do not change what
# the biLM computes.
_TRAINING_KEY = re.compile(
    r"all_clip_norm_val|batch_size|clip_grad_norm|(\w+\.)?dropout|eval_max_batches|learning_rate"
    r"|lr_decay_\w+|max_steps|n_epochs|n_negative_samples_batch|n_tokens_vocab|n_train_tokens"
    r"|sample_softmax|steps_per_epoch|unroll_steps|\w+_every_steps"
)


def parse_options(options: object, origin: object = None) -> dict[str, Any]:
    """Return the arguments of ``BiLMConfig`` for the content of an options file.

    See ``BiLMConfig.from_options``.
    """
    if not isinstance(options, dict):
        raise ValueError(
            f"BiLMConfig expects the options as a JSON object. Received: {type(options).__name__}"
        )
    in_sections: dict[str, Any] = {}
    for section in ("char_cnn", "lstm"):
        values = options.get(section, {})
        if not isinstance(values, dict):
            raise ValueError(
                f"BiLMConfig expects '{section}' in the options to be a JSON object. "
                f"Received: {section}={shorten(values)}"
            )
        in_sections |= {f"{section}.{key}": value for key, value in values.items()}
    n_characters = in_sections.pop("char_cnn.n_characters", N_CHARACTERS)
    arguments: dict[str, Any] = {}
    unknown = []
    for key, value in in_sections.items():
        if key in _ATTRIBUTES:
            arguments[_ATTRIBUTES[key]] = value
        elif key in _FIXED:
            _check_fixed(key, value)
        elif not _TRAINING_KEY.fullmatch(key):
            unknown.append(key)
    for key, value in options.items():
        if key == "code_points":
            arguments["code_points"] = CodePoints.from_options(value)
        elif key in _FIXED:
            _check_fixed(key, value)
        elif key not in ("char_cnn", "lstm") and not _TRAINING_KEY.fullmatch(str(key)):
            file = "the options" if origin is None else f"options file {origin}"
            warnings.warn(
                f"BiLMConfig ignores the unknown key {str(key)[:60]!r} of {file}", stacklevel=3
            )
    missing = [
        key for key, name in _ATTRIBUTES.items() if name not in arguments and name not in _DEFAULTS
    ]
    if unknown or missing:
        raise ValueError(
            "BiLMConfig expects the options of a bilm-tf biLM over characters. "
            f"Received: missing keys {missing}, unknown keys {shorten(unknown)}"
        )
    _check_n_characters(n_characters, arguments.get("code_points"))
    embedding = arguments["character_embedding_dim"]
    if not isinstance(embedding, dict) or set(embedding) != {"dim"}:
        raise ValueError(
            "BiLMConfig expects char_cnn.embedding to be an object with the one key 'dim'. "
            f"Received: embedding={shorten(embedding)}"
        )
    arguments["character_embedding_dim"] = embedding["dim"]
    # A key with the value null counts as missing.
    absent = {name for name in _DEFAULTS if arguments.get(name) is None}
    return arguments | {name: _DEFAULTS[name] for name in absent}


def _check_fixed(key: str, value: object) -> None:
    expected, meaning = _FIXED[key]
    # bilm-tf reads null as false.
    if value != expected and (value is not None or expected is not False):
        raise ValueError(
            f"BiLMConfig expects {meaning}. Received: {key}={shorten(value)}. Models with other "
            f"values than {key}={expected!r} are not supported"
        )


def _check_n_characters(n_characters: object, code_points: CodePoints | None) -> None:
    if code_points is not None:
        if n_characters != len(code_points.characters) + 1:
            raise ValueError(
                "BiLMConfig expects char_cnn.n_characters to be one more than the characters "
                f"of code_points. Received: n_characters={shorten(n_characters)}, for {code_points}"
            )
    elif n_characters not in (N_CHARACTERS - 1, N_CHARACTERS):
        raise ValueError(
            f"BiLMConfig expects char_cnn.n_characters to be {N_CHARACTERS - 1} (in training) "
            f"or {N_CHARACTERS} (in use). Received: n_characters={shorten(n_characters)}. A "
            "biLM over another alphabet than the bytes of UTF-8 is not supported"
        )


def format_options(config: Any) -> dict:
    """Return the content of an options file for a ``BiLMConfig``, ready for ``json.dump``."""
    options: dict = {"char_cnn": {"n_characters": config.n_characters}, "lstm": {}}
    for place, name in _ATTRIBUTES.items():
        section, key = place.split(".")
        options[section][key] = getattr(config, name)
    options["char_cnn"]["filters"] = [list(pair) for pair in config.filters]
    options["char_cnn"]["embedding"] = {"dim": config.character_embedding_dim}
    if config.code_points is not None:
        options["code_points"] = config.code_points.to_options()
    return options
