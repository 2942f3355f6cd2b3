"""The written-out gradient of the LSTM against automatic differentiation."""

import numpy as np
import pytest
from keras import ops

from keras_elmo.layers import ProjectedLSTM
from keras_elmo.layers.time_steps import scan
from keras_elmo.pretraining.lstm import projected_lstm
from tests.conftest import BACKEND, numpy
from tests.pretraining.gradients import gradients

TOKENS, BATCH = 7, 3


def make(projection_dim, cell_clip, projection_clip):
    layer = ProjectedLSTM(5, projection_dim, cell_clip, projection_clip)
    layer.build((None, None, 4))
    rng = np.random.default_rng(0)
    layer.set_weights([rng.normal(0, 0.8, w.shape) for w in layer.weights])
    return layer, rng.normal(size=(BATCH, TOKENS, 4)).astype("float32")


def run(layer, x, product_dtype="float32"):
    """As the layer does, in (batch, tokens, features), through ``projected_lstm``."""
    gates = ops.transpose(ops.matmul(x, layer.kernel) + layer.full_bias(), (1, 0, 2))
    cell = layer.cell
    outputs = projected_lstm(
        gates,
        cell.recurrent_kernel,
        cell.projection if cell.has_projection else None,
        cell.cell_clip,
        cell.projection_clip,
        product_dtype,
    )
    return ops.transpose(outputs, (1, 0, 2))


@pytest.mark.parametrize(
    "sizes", [(3, None, None), (3, 0.9, 0.6), (3, 0.9, None), (5, 0.9, 0.6), (5, None, None)]
)
def test_outputs_and_gradients_are_those_of_the_layer(sizes):
    layer, x = make(*sizes)
    weight = np.random.default_rng(1).normal(size=(BATCH, TOKENS, sizes[0]))
    weight = ops.convert_to_tensor(weight.astype("float32"))
    expected, ours = layer(x)[0], run(layer, ops.convert_to_tensor(x))
    np.testing.assert_allclose(numpy(ours), numpy(expected), atol=1e-6)
    if sizes[1]:  # the clips do something
        free, _ = make(sizes[0], None, None)
        assert np.abs(numpy(free(x)[0]) - numpy(expected)).max() > 0.01
    found = gradients(lambda: ops.sum(run(layer, ops.convert_to_tensor(x)) * weight), layer)
    right = gradients(lambda: ops.sum(layer(x)[0] * weight), layer)
    assert len(found) == len(layer.trainable_weights)
    for ours, theirs in zip(found, right, strict=True):
        assert np.abs(theirs).max() > 0
        np.testing.assert_allclose(ours, theirs, atol=2e-5 * np.abs(theirs).max())


def test_half_precision_products_change_the_gradient_little():
    layer, x = make(3, 3.0, 3.0)
    x = ops.convert_to_tensor(x)
    exact = gradients(lambda: ops.sum(run(layer, x) ** 2), layer)
    half = gradients(lambda: ops.sum(run(layer, x, "bfloat16") ** 2), layer)
    for ours, right in zip(half, exact, strict=True):
        np.testing.assert_allclose(ours, right, atol=0.02 * np.abs(right).max())
    assert any((ours != right).any() for ours, right in zip(half, exact, strict=True))


@pytest.mark.parametrize("reverse", [False, True])
def test_scan(reverse):
    x = ops.convert_to_tensor(np.arange(8, dtype="float32").reshape(4, 2))

    def step(carry, inputs):
        total = carry[0] + inputs[0]
        return (total,), (total, inputs[0][:1])

    start = (ops.zeros((2,)),)
    last, (totals, firsts) = scan(step, start, (x,), [(2,), (1,)], reverse=reverse)
    order = slice(None, None, -1 if reverse else 1)
    np.testing.assert_array_equal(numpy(totals), np.cumsum(numpy(x)[order], axis=0)[order])
    np.testing.assert_array_equal(numpy(firsts), numpy(x)[:, :1])
    np.testing.assert_array_equal(numpy(last[0]), numpy(x).sum(axis=0))


@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow only: lengths vary in one graph")
def test_one_graph_serves_all_lengths():
    import tensorflow as tf

    layer, x = make(3, 0.9, 0.6)

    @tf.function(input_signature=[tf.TensorSpec((None, None, 4))])
    def gradient(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(run(layer, x) ** 2)
        return tape.gradient(loss, [w.value for w in layer.trainable_weights])

    for tokens in (1, 3, TOKENS):
        part = tf.constant(x[:2, :tokens])
        right = gradients(lambda part=part: ops.sum(layer(part)[0] ** 2), layer)
        for ours, theirs in zip(gradient(part), right, strict=True):
            np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_keras_variables_are_not_captured():
    """A second call with other weights must see them."""
    layer, x = make(3, None, None)
    before = numpy(run(layer, ops.convert_to_tensor(x)))
    layer.cell.projection.assign(numpy(layer.cell.projection.value) * 2)
    assert np.abs(numpy(run(layer, ops.convert_to_tensor(x))) - before).max() > 0.1
