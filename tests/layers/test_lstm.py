"""The written-out gradient of the LSTM against automatic differentiation."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_elmo.layers.backend.lstm_gradient import run_steps
from keras_elmo.layers.lstm import ProjectedLSTM, lstm_step
from tests.conftest import BACKEND, make_config, numpy
from tests.gradients import gradients, gradients_of

pytestmark = pytest.mark.backends

TOKENS, BATCH, LSTM_DIM = 7, 3, 5
LENGTHS = [7, 4, 1]
MASK = (np.arange(TOKENS) < np.array(LENGTHS)[:, None]).T


def make_variables(projection_dim, dtype="float32"):
    """Return gates, h, c, kernel, and the projection if there is one."""
    rng = np.random.default_rng(0)
    shapes = [(TOKENS, BATCH, 4 * LSTM_DIM), (BATCH, projection_dim), (BATCH, LSTM_DIM)]
    shapes += [(projection_dim, 4 * LSTM_DIM), (LSTM_DIM, projection_dim)]
    shapes = shapes[: 4 if projection_dim == LSTM_DIM else 5]
    return [keras.Variable(rng.normal(0, 0.8, shape), dtype=dtype) for shape in shapes]


def arguments(variables):
    gates, h, c, kernel, *projection = [ops.copy(variable) for variable in variables]
    return gates, (h, c), kernel, projection[0] if projection else None


def plain_lstm(gates, state, kernel, projection, cell_clip, projection_clip, mask):
    """Compute ``run_steps`` step by step, for automatic differentiation."""

    def clip(x, bound):
        return x if bound is None else ops.minimum(ops.maximum(x, -bound), bound)

    h, c = state
    outputs = [None] * gates.shape[0]
    for t in range(gates.shape[0]):
        i, f, candidate, o = ops.split(gates[t] + h @ kernel, 4, axis=-1)
        new_c = clip(ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(candidate), cell_clip)
        new_h = ops.sigmoid(o) * ops.tanh(new_c)
        if projection is not None:
            new_h = clip(new_h @ projection, projection_clip)
        real = np.ones((BATCH, 1)) if mask is None else mask[t][:, None]
        real = ops.convert_to_tensor(real, "float32")
        outputs[t] = real * new_h
        h, c = real * new_h + (1 - real) * h, real * new_c + (1 - real) * c
    return ops.stack(outputs), (h, c)


def weighted(outputs, state):
    """Return a loss that weights every number differently."""
    rng = np.random.default_rng(1)
    parts = (outputs, *state)
    return sum(
        ops.sum(x * ops.convert_to_tensor(rng.normal(size=x.shape).astype("float32")))
        for x in parts
    )


@pytest.mark.parametrize("mask", [None, MASK, MASK[::-1]])
@pytest.mark.parametrize(
    "sizes", [(3, None, None), (3, 0.9, 0.6), (3, 0.9, None), (5, 0.9, None), (5, None, None)]
)
def test_outputs_and_gradients_are_those_of_the_formulas(sizes, mask):
    """Includes gradients of the initial and the final state, and padding in front."""
    projection_dim, *clips = sizes
    variables = make_variables(projection_dim)

    def ours():
        gates, state, kernel, projection = arguments(variables)
        is_token = None if mask is None else ops.convert_to_tensor(mask)
        outputs, *state = run_steps(lstm_step, gates, state, is_token, (kernel, projection), clips)
        return outputs, state

    def right():
        return plain_lstm(*arguments(variables), *clips, mask)

    for a, b in zip(keras.tree.flatten(ours()), keras.tree.flatten(right()), strict=True):
        np.testing.assert_allclose(numpy(a), numpy(b), atol=1e-6)
    if mask is not None:
        assert not numpy(ours()[0])[~mask].any()
    if clips[0]:  # The clips change the result.
        free = plain_lstm(*arguments(variables), None, None, mask)
        assert np.abs(numpy(free[0]) - numpy(right()[0])).max() > 0.01
    found = gradients_of(lambda: weighted(*ours()), variables)
    expected = gradients_of(lambda: weighted(*right()), variables)
    for a, b in zip(found, expected, strict=True):
        assert np.abs(b).max() > 0
        np.testing.assert_allclose(a, b, atol=2e-5 * np.abs(b).max())


@pytest.mark.backends("torch")
def test_a_layer_with_half_precision_products_keeps_its_states_in_float32():
    config = make_config(lstm_dim=5, projection_dim=3)
    exact_layer, half_layer = (ProjectedLSTM(config, product_dtype=d) for d in (None, "bfloat16"))
    x = ops.convert_to_tensor(np.random.default_rng(0).normal(size=(6, 4, 7)).astype("float32"))
    exact_layer(x), half_layer(x)
    exact_layer.bias.assign(np.linspace(-1, 1, 20))
    half_layer.set_weights(exact_layer.get_weights())

    def loss(layer):
        outputs, state = layer(x)
        assert {keras.backend.standardize_dtype(y.dtype) for y in (outputs, *state)} == {"float32"}
        return ops.sum(outputs**2)

    exact = gradients(lambda: loss(exact_layer), exact_layer)
    half = gradients(lambda: loss(half_layer), half_layer)
    assert len(half) == 4
    for ours, right in zip(half, exact, strict=True):
        assert ours.dtype == "float32" and (ours != right).any()
        np.testing.assert_allclose(ours, right, atol=0.03 * np.abs(right).max())


@pytest.mark.backends("torch")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_throughout(dtype):
    exact, half = make_variables(3), make_variables(3, dtype)

    def loss(variables):
        gates, state, kernel, projection = arguments(variables)
        weights = kernel, projection
        return ops.sum(run_steps(lstm_step, gates, state, None, weights, (3.0, 3.0))[0] ** 2)

    rough = gradients_of(lambda: loss(half), half)
    for ours, right in zip(rough, gradients_of(lambda: loss(exact), exact), strict=True):
        assert str(ours.dtype) == dtype
        np.testing.assert_allclose(ours.astype("float32"), right, atol=0.05 * np.abs(right).max())


def test_an_lstm_learns_the_same_compiled_and_not():
    """Uses XLA if possible: its gradient of a loop needs a bound on the steps."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(6, 4, 3)).astype("float32"), rng.normal(size=(6, 4, 2))
    mask = np.ones((6, 4), bool)
    mask[4:, 1] = mask[1:, 2] = False
    found = []
    for how in ({"jit_compile": BACKEND != "torch"}, {"run_eagerly": True, "jit_compile": False}):
        config = make_config(lstm_dim=5, projection_dim=2, cell_clip=0.4, projection_clip=0.3)
        inputs = keras.Input((4, 3)), keras.Input((4,), dtype="bool")  # any number of tokens
        model = keras.Model(inputs, ProjectedLSTM(config)(inputs[0], is_token=inputs[1])[0])
        weights = [np.random.default_rng(0).normal(size=w.shape) for w in model.weights]
        model.set_weights(weights)
        model.compile(keras.optimizers.SGD(1.0), "mse", **how)
        model.fit((x, mask), y, epochs=2, batch_size=6, shuffle=False, verbose=0)
        found.append(model.get_weights())
    for compiled, eager, start in zip(*found, weights, strict=True):
        np.testing.assert_allclose(compiled, eager, atol=1e-5)
        assert np.abs(eager - start).max() > 1e-3
