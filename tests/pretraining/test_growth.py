"""Growth: the larger biLM starts where the smaller one stands."""

import keras
import numpy as np
import pytest

from keras_elmo.layers.bilm import representation_names
from keras_elmo.pretraining import growth
from keras_elmo.pretraining.growth import grow_language_model
from tests.conftest import make_config, numpy, slow, tokenize
from tests.gradients import gradients
from tests.pretraining.test_language_model import (
    SENTENCES,
    make_batch,
    make_model,
    tensors,
)

# One size at a time, then all.
GROWN = {
    "lstm_dim": {"lstm_dim": 27},
    "projection_dim": {"projection_dim": 8},
    "character_embedding_dim": {"character_embedding_dim": 7},
    "more of each filter": {"filters": ((1, 4), (2, 5), (4, 11))},
    "more filters": {"filters": ((1, 3), (1, 2), (2, 5), (3, 2), (4, 9), (5, 3))},
}
GROWN["all"] = {name: size for changes in GROWN.values() for name, size in changes.items()}


def representations(model):
    ids = tokenize([["<S>", *s, "</S>"] for s in SENTENCES], model.config.max_characters_per_token)
    mask = (ids > 0).any(axis=2)
    found, _ = model.bilm(keras.ops.convert_to_tensor(ids), keras.ops.convert_to_tensor(mask))
    return {name: numpy(x) for name, x in found.items()}


def grow(small, changes, **kwargs):
    config = make_config(cell_clip=1.0, projection_clip=0.5, **changes)
    kwargs = {"n_negatives": None, "dropout": 0.0, "seed": 3} | kwargs
    return grow_language_model(small, config, name="lm", **kwargs)


def nll(model):
    """Of every prediction under the full softmax."""
    return numpy(model.score(tensors(make_batch())))


@pytest.mark.parametrize("name", GROWN)
def test_a_grown_bilm_computes_what_the_smaller_one_did(name, monkeypatch):
    monkeypatch.setattr(growth, "_NOISE", 0.0)
    small = make_model()
    large = grow(small, GROWN[name])
    assert large.count_params() > small.count_params()
    before, after = representations(small), representations(large)
    width = small.config.projection_dim
    for layer in representation_names(small.config):
        np.testing.assert_allclose(after[layer][..., :width], before[layer], atol=1e-5)
        assert after[layer].shape[-1] == large.config.projection_dim
        if large.config.projection_dim > width:  # and the new features are there
            assert np.abs(after[layer][:, :2, width:]).max() > 0.01
    np.testing.assert_allclose(nll(large), nll(small), atol=1e-5)


@slow
def test_all_that_is_new_learns():
    """Outgoing weights first; copies of a cell differ, since their inputs have some noise."""
    small = make_model()
    large = grow(small, GROWN["all"])
    batch = tensors(make_batch())
    found = dict(
        zip((w.path for w in large.trainable_weights), gradients(lambda: large(batch), large))
    )
    width, cells = small.config.projection_dim, small.config.lstm_dim
    assert (np.abs(found[large.softmax_kernel.path][:, width:]).max(axis=0) > 0).all()
    for lstm in ("forward_1", "forward_2", "backward_1", "backward_2"):
        gates = found[f"bilm/{lstm}/kernel"]
        assert (np.abs(gates[width:]).max(axis=1) > 0).all(), lstm
        recurrent = found[f"bilm/{lstm}/recurrent_kernel"]
        assert (np.abs(recurrent[width:]).max(axis=1) > 0).all(), lstm
        # The gradients of the cells: no two alike.
        gates = gates.reshape(large.config.projection_dim, 4, -1).transpose(2, 0, 1)
        assert len({tuple(cell.ravel()) for cell in gates}) == large.config.lstm_dim > 2 * cells
    large.compile(keras.optimizers.Adam(0.01), jit_compile=False)
    start = float(numpy(large(batch)))
    for _ in range(3):
        large.train_on_batch(make_batch())
    assert float(numpy(large(batch))) < start
    new = numpy(large.softmax_kernel)[:, width:]
    assert (np.abs(new).max(axis=0) > 0).all()


def test_with_noise_it_is_nearly_the_same_and_the_seed_tells_all():
    small = make_model()
    before, *others = (
        nll(model)
        for model in (small, grow(small, GROWN["all"]), grow(small, GROWN["all"], seed=4))
    )
    for after in others:
        assert 0 < np.abs(after - before).max() < 0.1
    assert (others[0] != others[1]).any()
    one, two = (grow(small, GROWN["all"]).get_weights() for _ in range(2))
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"lstm_dim": 9}, "lstm_dim=9 is less than 10"),
        ({"projection_dim": 5}, "projection_dim=5 is less than 6"),
        ({"character_embedding_dim": 3}, "character_embedding_dim=3 is less than 4"),
        ({"n_layers": 3}, "n_layers=3 is not 2"),
        ({"n_highway": 2}, "n_highway=2 is not 1"),
        ({"activation": "tanh"}, "activation='tanh' is not 'relu'"),
        ({"max_characters_per_token": 50}, "max_characters_per_token=50 is not 13"),
        ({"cell_clip": None}, "cell_clip=None is not 1.0"),
        ({"filters": ((1, 3), (2, 4), (4, 9))}, r"filters=.*\(2, 4\).* do not contain \(\(1, 3\)"),
        ({"filters": ((2, 5), (1, 3), (4, 9))}, "do not contain"),
        ({"filters": ((1, 3), (2, 5))}, "do not contain"),
        ({"projection_dim": 10}, "the larger biLM lacks a projection"),
        (
            {"projection_dim": 18, "lstm_dim": 20, "filters": ((1, 3), (2, 5), (4, 10))},
            "larger biL",
        ),
        ({"lstm_dim": 9, "n_layers": 1}, "lstm_dim=9 is less than 10; n_layers=1 is not 2$"),
    ],
)
def test_what_cannot_grow(changes, message):
    config = make_config(**{"cell_clip": 1.0, "projection_clip": 0.5, **changes})
    with pytest.raises(ValueError, match=f"A biLM can grow in lstm_dim, .* Received: .*{message}"):
        growth.check_growth(make_model().config, config)


def test_each_filter_needs_another_one():
    two = make_config(filters=((1, 3), (1, 2), (2, 5)))
    growth.check_growth(two, make_config(filters=((1, 4), (1, 6), (2, 5))))
    with pytest.raises(ValueError, match="do not contain"):
        growth.check_growth(two, make_config(filters=((1, 12), (2, 5))))
