"""Highway, CharCNN and ProjectedLSTM against NumPy, and their common base class."""

import keras
import numpy as np
import pytest

from keras_elmo.layers import BiLM, CharCNN, Highway, ProjectedLSTM
from tests import reference
from tests.conftest import BACKEND, make_config, numpy

pytestmark = pytest.mark.backends

RNG = np.random.default_rng(0)


def randomize(layer):
    """Set every weight to random values and return them by name."""
    layer.set_weights([RNG.normal(0, 0.4, w.shape) for w in layer.weights])
    return {w.path.removeprefix(layer.path + "/"): numpy(w.value) for w in layer.weights}


def test_highway():
    layer = Highway()
    layer.build((None, 5))
    assert (numpy(layer.gate_bias.value) == -2).all()
    w = randomize(layer)
    x = RNG.normal(size=(2, 3, 5)).astype("float32")
    gate = reference.sigmoid(x @ w["gate_kernel"] + w["gate_bias"])
    transform = np.maximum(x @ w["transform_kernel"] + w["transform_bias"], 0)
    np.testing.assert_allclose(numpy(layer(x)), gate * transform + (1 - gate) * x, atol=1e-5)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("n_highway", [0, 1, 3])
@pytest.mark.parametrize("projection_dim", [6, 14])
def test_char_cnn(activation, n_highway, projection_dim):
    filters = [[3, 5], [1, 9]]  # Not sorted: the order of the weight file counts.
    layer = CharCNN(filters, 4, n_highway, projection_dim, activation)
    layer.build((None, 11))
    assert layer.has_projection == (projection_dim == 6)
    w = randomize(layer)
    weights = {"char_embed": w["embeddings"][1:]}
    for i in range(2):
        weights[f"CNN/W_cnn_{i}"] = w[f"conv_{i}_kernel"][None]
        weights[f"CNN/b_cnn_{i}"] = w[f"conv_{i}_bias"]
    for i in range(n_highway):
        for ours, theirs in (("gate", "carry"), ("transform", "transform")):
            weights[f"CNN_high_{i}/W_{theirs}"] = w[f"highway_{i}/{ours}_kernel"]
            weights[f"CNN_high_{i}/b_{theirs}"] = w[f"highway_{i}/{ours}_bias"]
    if layer.has_projection:
        weights["CNN_proj/W_proj"] = w["projection_kernel"]
        weights["CNN_proj/b_proj"] = w["projection_bias"]
    options = {"char_cnn": {"filters": filters, "activation": activation, "n_highway": n_highway}}
    ids = RNG.integers(1, 262, size=(2, 3, 11))
    expected = [
        [reference.token_representation(row, options, weights) for row in sentence]
        for sentence in ids
    ]
    scale = np.abs(expected).max()
    np.testing.assert_allclose(numpy(layer(ids)) / scale, np.array(expected) / scale, atol=1e-6)


@pytest.mark.skipif(BACKEND == "jax", reason="JAX compiles for fixed sizes")
def test_char_cnn_computes_a_distinct_token_once(monkeypatch):
    seen = []
    represent = CharCNN.represent
    monkeypatch.setattr(
        CharCNN, "represent", lambda self, rows: seen.append(rows.shape) or represent(self, rows)
    )
    rows = RNG.integers(1, 262, size=(3, 11))
    layer = CharCNN([[1, 3]], 4, 0, 3)
    found = numpy(layer(rows[[[0, 1, 0, 2], [2, 1, 1, 1]]]))
    assert tuple(seen[0]) == (3, 11)
    np.testing.assert_array_equal(found[0, 1], found[1, 2])
    np.testing.assert_allclose(found[0, [0, 1, 3]], numpy(layer.represent(rows)), atol=1e-6)


@pytest.mark.parametrize("cell_clip, projection_clip", [(None, None), (0.4, None), (None, 0.3)])
@pytest.mark.parametrize("lstm_dim", [5, 3])
@pytest.mark.parametrize("go_backwards", [False, True])
def test_lstm(cell_clip, projection_clip, lstm_dim, go_backwards):
    layer = ProjectedLSTM(lstm_dim, 3, cell_clip, projection_clip, go_backwards)
    layer.build((None, None, 4))
    w = randomize(layer)
    keras_order = [0, 2, 1, 3]  # i, j, f, o from i, f, c, o

    def gates(x):
        return np.concatenate([np.split(x, 4, -1)[i] for i in keras_order], -1)

    weights = {
        "p/W_0": gates(np.concatenate([w["kernel"], w["recurrent_kernel"]])),
        "p/B": gates(w["bias"]),
    }
    if lstm_dim != 3:
        weights["p/W_P_0"] = w["projection"]
    options = {"lstm": {"cell_clip": cell_clip, "proj_clip": projection_clip}}
    x = RNG.normal(size=(3, 6, 4)).astype("float32")
    lengths = [6, 4, 1]
    start = [RNG.normal(size=(3, n)).astype("float32") for n in (3, lstm_dim)]
    mask = np.arange(6) < np.array(lengths)[:, None]
    outputs, state = layer(
        x,
        mask=keras.ops.convert_to_tensor(mask),
        initial_state=[keras.ops.convert_to_tensor(s) for s in start],
    )
    order = slice(None, None, -1 if go_backwards else 1)
    for row, n in enumerate(lengths):
        expected, final = reference.lstm(
            x[row, :n][order], "p", options, weights, (start[0][row], start[1][row])
        )
        np.testing.assert_allclose(numpy(outputs)[row, :n], expected[order], atol=1e-5)
        assert not numpy(outputs)[row, n:].any()
        for found, value in zip(state, final):
            np.testing.assert_allclose(numpy(found)[row], value, atol=1e-5)


def test_masks_of_the_outputs():
    """Keras attaches them to the outputs, for the layers behind the LSTM or the biLM."""
    inputs, mask = keras.Input((None, 4)), keras.Input((None,), dtype="bool")
    outputs, _ = ProjectedLSTM(5, 3)(inputs, mask=mask)
    assert outputs._keras_mask is mask
    ids = keras.Input((None, 13), dtype="int32")
    representations, _ = BiLM(make_config())(ids, mask=mask)
    assert {id(x._keras_mask) for x in representations.values()} == {id(mask)}


@pytest.mark.parametrize("go_backwards", [False, True])
def test_lstm_learns_the_same_compiled_and_not(go_backwards):
    """Uses XLA if possible: its gradient of a loop needs a bound on the steps."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(4, 6, 3)).astype("float32"), rng.normal(size=(4, 6, 2))
    mask = np.arange(6) < np.array([6, 4, 1, 6])[:, None]
    found = []
    for how in ({"jit_compile": BACKEND != "torch"}, {"run_eagerly": True, "jit_compile": False}):
        lstm = ProjectedLSTM(5, 2, 0.4, 0.3, go_backwards)
        inputs = keras.Input((None, 3)), keras.Input((None,), dtype="bool")
        model = keras.Model(inputs, lstm(inputs[0], mask=inputs[1])[0])
        weights = [np.random.default_rng(0).normal(size=w.shape) for w in model.weights]
        model.set_weights(weights)
        model.compile(keras.optimizers.SGD(1.0), "mse", **how)
        model.fit((x, mask), y, epochs=2, batch_size=4, verbose=0)
        found.append(model.get_weights())
    for compiled, eager, start in zip(*found, weights, strict=True):
        np.testing.assert_allclose(compiled, eager, atol=1e-5)
        assert np.abs(eager - start).max() > 1e-3


@pytest.mark.parametrize("frozen", [False, True])
def test_frozen_weights_stay_frozen_through_every_toggle(frozen):
    layer = ProjectedLSTM(5, 3, frozen=frozen)
    layer.build((None, None, 4))
    highway = Highway(frozen=frozen)
    highway.build((None, 4))
    for part in (layer, highway):
        for toggle in (False, True):
            part.trainable = toggle
            for inner in part._flatten_layers():
                inner.trainable = toggle
            expected = 0 if frozen or not toggle else len(part.weights)
            assert len(part.trainable_weights) == expected


def test_a_projection_between_equal_sizes_survives_the_config():
    layer = CharCNN([[1, 2], [2, 4]], 4, 0, 6, has_projection=True)
    again = CharCNN.from_config(layer.get_config())
    for each in (layer, again):
        each.build((None, 11))
        assert each.has_projection and each.projection_kernel.shape == (6, 6)


def test_an_initial_state_in_float32_keeps_the_dtype_of_the_layer():
    """Keras casts the arguments of ``call``, and nobody those of ``run``."""
    lstm = ProjectedLSTM(5, 3, dtype="mixed_bfloat16")
    lstm.build((2, 4, 6))
    x = np.random.default_rng(0).normal(size=(4, 2, 6)).astype("float32")
    expected, _ = lstm.run(x)
    zeros = [keras.ops.zeros((2, size), "float32") for size in (3, 5)]
    outputs, state = lstm.run(x, state=zeros)
    kinds = {keras.backend.standardize_dtype(y.dtype) for y in (expected, outputs, *state)}
    assert kinds == {"bfloat16"}
    np.testing.assert_array_equal(numpy(outputs), numpy(expected))
