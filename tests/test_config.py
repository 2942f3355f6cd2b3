import json

import numpy as np
import pytest

from keras_elmo import BiLMConfig
from keras_elmo.alphabets import SPECIAL_CHARACTERS, CodePoints
from tests.conftest import make_config

OPTIONS = make_config().to_options()


def options(**changes):
    """Return the options with ``section__key`` set, or removed if the value is ``...``."""
    new = {section: dict(keys) for section, keys in OPTIONS.items()}
    for name, value in changes.items():
        section, _, key = name.partition("__")
        place = new[section] if key else new
        if value is ...:
            del place[key or section]
        else:
            place[key or section] = value
    return new


def test_numpy_numbers_come_in_and_json_goes_out():
    assert type(BiLMConfig(n_layers=np.int64(1)).n_layers) is int
    options = BiLMConfig(cell_clip=np.float32(2), projection_clip=3).to_options()
    assert json.loads(json.dumps(options)) == BiLMConfig(cell_clip=2.0).to_options()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"filters": [[1, 4]], "n_highway": 0, "n_layers": 1, "activation": "tanh"},
        {"cell_clip": None, "projection_clip": 0.01, "use_skip_connections": False},
        {"code_points": CodePoints(characters=(*SPECIAL_CHARACTERS, "a"))},
    ],
)
def test_options_round_trip(changes):
    config = make_config(**changes)
    assert BiLMConfig.from_options(json.loads(json.dumps(config.to_options()))) == config
    original = BiLMConfig(**changes)  # the defaults
    assert (original.lstm_dim, original.projection_dim) == (4096, 512)
    assert BiLMConfig.from_options(original.to_options()) == original


def test_settings_that_do_not_describe_a_biLM_are_ignored():
    bilm_tf = {"char_cnn__n_characters": 261, "n_tokens_vocab": 793471, "unroll_steps": 20}
    rewrite_in_pytorch = {"lstm__dropout": 0.1, "char_cnn__dropout": 0.2}
    given = options(**bilm_tf, **rewrite_in_pytorch, dropout=0.1, optimizer={"name": "adam"})
    assert BiLMConfig.from_options(given) == make_config()


@pytest.mark.parametrize(
    "key, value, other",
    [
        ("char_cnn__projection_after_highway", True, False),  # in the released checkpoint
        ("char_cnn__projection_location", "after_highway", "after_cnn"),
        ("char_cnn__do_layer_norm", False, True),
        ("lstm__forget_bias", 1.0, 0.0),
        ("lstm__use_peepholes", None, True),
        ("share_embedding_softmax", None, "yes"),
    ],
)
def test_keys_that_may_have_one_value(key, value, other):
    assert BiLMConfig.from_options(options(**{key: value})) == make_config()
    name = key.replace("__", ".")
    message = f"^Options file o.json: .* {name} to be .* Received: {name}={other!r}. Models .* not"
    with pytest.raises(ValueError, match=message):
        BiLMConfig.from_options(options(**{key: other}), "o.json")


def test_errors_name_the_file():
    for bad in ([], options(lstm__dim=...), options(lstm__dim=0)):
        with pytest.raises(ValueError, match="^Options file o.json: BiLMConfig"):
            BiLMConfig.from_options(bad, "o.json")
        with pytest.raises(ValueError, match="^BiLMConfig"):
            BiLMConfig.from_options(bad)


def test_missing_keys_mean_what_they_mean_to_bilm_tf():
    short = options(
        char_cnn__n_highway=...,
        char_cnn__n_characters=...,
        lstm__n_layers=...,
        lstm__cell_clip=...,
        lstm__proj_clip=...,
        lstm__use_skip_connections=...,
    )
    assert BiLMConfig.from_options(short) == make_config(
        n_highway=0, n_layers=1, cell_clip=None, projection_clip=None, use_skip_connections=False
    )
    nulls = options(char_cnn__n_highway=None, lstm__use_skip_connections=None)
    assert BiLMConfig.from_options(nulls) == make_config(n_highway=0, use_skip_connections=False)


@pytest.mark.parametrize(
    "bad, message",
    [
        (options(lstm__dim=...), r"missing keys \['lstm.dim'\]"),
        (
            options(char_cnn=...),
            r"missing keys \['char_cnn.activation', .*'char_cnn.embedding.dim'\]",
        ),
        (options(lstm__size=3, char_cnn__x=1), r"unknown keys \['char_cnn.x', 'lstm.size'\]"),
        (
            options(char_cnn__n_characters=267),
            "n_characters to be 261 or 262. Received: char_cnn.n_characters=267",
        ),
        (options(char_cnn__embedding=16), r"unknown keys \['char_cnn.embedding'\]"),
        (options(lstm=[]), r"unknown keys \['lstm'\]"),
        (["lstm"], "as a JSON object. Received: list"),
        (options(lstm__dim="10"), "lstm_dim to be whole, 1 to"),
    ],
)
def test_bad_options(bad, message):
    with pytest.raises(ValueError, match=message):
        BiLMConfig.from_options(bad)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"n_layers": 0}, "n_layers to be whole, 1 to 1000. Received: n_layers=0"),
        ({"n_highway": -1}, "n_highway to be whole, 0 to"),
        ({"lstm_dim": True}, "lstm_dim to be whole"),
        ({"max_characters_per_token": 2}, "max_characters_per_token to be whole, 3 to"),
        ({"cell_clip": 0}, "cell_clip to be above 0, or None. Received: cell_clip=0"),
        ({"projection_clip": float("nan")}, "projection_clip to be above 0"),
        ({"activation": "gelu"}, "activation to be 'relu' or 'tanh'"),
        ({"use_skip_connections": 1}, "use_skip_connections to be True or False"),
        ({"filters": ()}, r"filters to be pairs .* Received: filters=\(\)"),
        ({"filters": ((1, 2, 3),)}, "filters to be pairs"),
        ({"filters": ((14, 2),)}, "no filter wider than max_characters_per_token"),
        ({"projection_dim": 11}, "projection_dim of at most lstm_dim"),
        ({"n_layers": 0, "lstm_dim": 0}, "lstm_dim .*; expects n_layers"),
        ({"n_layers": 10**9}, "n_layers to be .* to 1000. Received: n_layers=1000000000"),
        ({"lstm_dim": [[[[[[[[0]]]]]]]] * 999}, r"Received: lstm_dim=\[\[\[.{,600}$"),
    ],
)
def test_bad_values(changes, message):
    with pytest.raises(ValueError, match=message):
        make_config(**changes)


def test_a_biLM_over_code_points_always_projects():
    """ELMoForManyLangs has a projection also where bilm-tf needs none."""
    code_points = CodePoints(characters=(*SPECIAL_CHARACTERS, "a"))
    for known in (None, code_points):
        config = make_config(filters=((1, 2), (2, 4)), code_points=known)
        assert config.n_filters == config.projection_dim
        assert config.has_projection == (known is not None)
