"""The sampled softmax: unbiased where it should be, and the full one as its limit."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_elmo.pretraining import softmax
from keras_elmo.pretraining.softmax import (
    negative_log_likelihood,
    sample_log_uniform,
    softmax_loss,
)
from tests.conftest import numpy
from tests.gradients import gradients

pytestmark = pytest.mark.backends("torch")

VOCABULARY, WIDTH, N = 30, 4, 50


class Softmax(keras.layers.Layer):
    def build(self, input_shape):
        self.outputs = self.add_weight(shape=(N, WIDTH), name="outputs")
        self.kernel = self.add_weight(shape=(VOCABULARY, WIDTH), name="kernel")
        self.bias = self.add_weight(shape=(VOCABULARY,), name="bias")


@pytest.fixture
def case():
    rng = np.random.default_rng(0)
    layer = Softmax()
    layer.build(None)
    layer.set_weights([rng.normal(size=w.shape) for w in layer.weights])
    targets = rng.integers(0, VOCABULARY, N).astype("int32")
    weights = rng.uniform(0, 1, N).astype("float32")
    weights[::7] = 0
    return layer, ops.convert_to_tensor(targets), ops.convert_to_tensor(weights)


def full(layer, targets):
    """The full softmax in float64 NumPy: log-probabilities of the targets, and all errors."""
    outputs, kernel, bias = (numpy(w.value).astype("float64") for w in layer.weights)
    logits = outputs @ kernel.T + bias
    probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    targets = numpy(targets)
    return np.log(probabilities[np.arange(N), targets]), probabilities - np.eye(VOCABULARY)[targets]


def loss(case, sample=None, product_dtype="float32"):
    layer, targets, weights = case
    return softmax_loss(
        ops.copy(layer.outputs), targets, weights, layer.kernel, layer.bias, sample, product_dtype
    )


def expected_gradients(case):
    layer, targets, weights = case
    _, errors = full(layer, targets)
    errors = errors * numpy(weights)[:, None]
    outputs, kernel, _ = (numpy(w.value) for w in layer.weights)
    return [errors @ kernel, errors.T @ outputs, errors.sum(axis=0)]


def test_full_softmax(case):
    layer, targets, weights = case
    log_p, _ = full(layer, targets)
    np.testing.assert_allclose(float(numpy(loss(case))), -(numpy(weights) * log_p).sum(), rtol=1e-6)
    nll = negative_log_likelihood(ops.copy(layer.outputs), targets, layer.kernel, layer.bias)
    np.testing.assert_allclose(numpy(nll), -log_p, atol=1e-5)
    for ours, right in zip(
        gradients(lambda: 1.0 * loss(case), layer), expected_gradients(case), strict=True
    ):
        np.testing.assert_allclose(ours, right, atol=1e-5)


def test_a_large_vocabulary_takes_more_parts(case, monkeypatch):
    layer, targets, _ = case
    rows = softmax._parts(N, VOCABULARY)
    assert len(rows) == 4 and rows[0].start == 0 and rows[-1].stop == N
    whole = gradients(lambda: loss(case), layer)
    nll = negative_log_likelihood(ops.copy(layer.outputs), targets, layer.kernel, layer.bias)
    monkeypatch.setattr(softmax, "_BYTES_OF_A_PART", 4 * VOCABULARY)
    assert [rows.stop - rows.start for rows in softmax._parts(N, VOCABULARY)] == [1] * N
    for ours, right in zip(gradients(lambda: loss(case), layer), whole, strict=True):
        np.testing.assert_allclose(ours, right, atol=1e-5)
    in_parts = negative_log_likelihood(ops.copy(layer.outputs), targets, layer.kernel, layer.bias)
    np.testing.assert_allclose(numpy(in_parts), numpy(nll), rtol=1e-6)


def test_a_sample_of_everything_is_the_full_softmax(case):
    order = np.random.default_rng(1).permutation(VOCABULARY).astype("int32")
    sample = ops.convert_to_tensor(order), ops.zeros((VOCABULARY,))
    for ours, right in zip(
        gradients(lambda: loss(case, sample), case[0]), expected_gradients(case), strict=True
    ):
        np.testing.assert_allclose(ours, right, atol=1e-5)


def test_sampled_loss_against_a_plain_computation(case):
    layer, targets, weights = case
    sample = sample_log_uniform(12, VOCABULARY, keras.random.SeedGenerator(1))
    drawn, log_expected = (numpy(x) for x in sample)
    outputs, kernel, bias = (numpy(w.value).astype("float64") for w in layer.weights)
    total = 0
    for x, target, weight in zip(outputs, numpy(targets), numpy(weights), strict=True):
        true = x @ kernel[target] + bias[target]
        others = [
            x @ kernel[i] + bias[i] - e
            for i, e in zip(drawn, log_expected, strict=True)
            if i != target
        ]
        total += weight * (np.logaddexp.reduce([true, *others]) - true)
    np.testing.assert_allclose(float(numpy(loss(case, sample))), total, rtol=1e-5)


def test_the_estimate_of_the_softmax_sum_is_unbiased():
    """Draws are distinct, and sums over them divided by the expected counts have no bias."""
    values = np.linspace(1, 5, VOCABULARY) ** 2
    seed = keras.random.SeedGenerator(2)
    found, counts = [], np.zeros(VOCABULARY)
    for _ in range(400):
        drawn, log_expected = (numpy(x) for x in sample_log_uniform(10, VOCABULARY, seed))
        assert len(set(drawn.tolist())) == 10 and (log_expected <= 0).all()
        found.append((values[drawn] / np.exp(log_expected)).sum())
        counts[drawn] += 1
    error = np.std(found) / np.sqrt(len(found))
    assert abs(np.mean(found) - values.sum()) < 4 * error < 0.12 * values.sum()
    # Frequent tokens, which come first, are drawn more often.
    assert counts[:5].sum() > 2 * counts[-5:].sum()


def test_the_sampled_gradient_is_the_full_one_in_expectation(case):
    """The mean over draws is close to it, the closer the larger the sample.

    Logits are small here, so that few draws are enough; without the expected counts the
    error at 20 of the 30 ids would be 0.06, 0.07 and 0.36.
    """
    layer = case[0]
    layer.set_weights([0.3 * weight for weight in layer.get_weights()])
    seed = keras.random.SeedGenerator(3)
    errors = []
    for size in (6, 20):
        found = []
        for _ in range(100):
            sample = sample_log_uniform(size, VOCABULARY, seed)
            found.append(gradients(lambda sample=sample: loss(case, sample), layer))
        errors.append(
            [
                np.linalg.norm(np.mean(ours, axis=0) - right) / np.linalg.norm(right)
                for ours, right in zip(zip(*found), expected_gradients(case), strict=True)
            ]
        )
    assert np.less(errors[0], [0.1, 0.1, 0.45]).all(), errors
    assert np.less(errors[1], [0.03, 0.035, 0.2]).all(), errors


def test_half_precision_products(case):
    exact, half = (
        gradients(lambda: loss(case), case[0]),
        gradients(lambda: loss(case, product_dtype="bfloat16"), case[0]),
    )
    for ours, right in zip(half, exact, strict=True):
        np.testing.assert_allclose(ours, right, atol=0.05 * np.abs(right).max())
