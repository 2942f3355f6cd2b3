import keras
import numpy as np
import pytest

from keras_elmo import ScalarMix
from tests import reference
from tests.conftest import BACKEND, numpy

pytestmark = pytest.mark.backends

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4, 2, 5)).astype("float32")
MASK = np.array([[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]], bool)


def make(scalars=(0.3, -1.2), gamma=0.7, **kwargs):
    mix = ScalarMix(**kwargs)
    mix.build(X.shape)
    mix.scalars.assign(scalars)
    mix.gamma.assign(gamma)
    return mix


def call(mix, x=X, mask=MASK, **kwargs):
    return numpy(mix(x, mask=keras.ops.convert_to_tensor(mask), **kwargs))


def test_formula():
    expected = reference.scalar_mix(X, np.array([0.3, -1.2]), 0.7)
    np.testing.assert_allclose(numpy(make()(X)), expected, atol=1e-6)
    np.testing.assert_allclose(call(make()), expected * MASK[..., None], atol=1e-6)
    weights = make().layer_weights
    assert isinstance(weights, np.ndarray)
    np.testing.assert_allclose(weights, np.exp([0.3, -1.2]) / np.exp([0.3, -1.2]).sum(), atol=1e-6)
    np.testing.assert_allclose(numpy(ScalarMix()(X)), X.mean(2), atol=1e-6)  # untrained


def test_a_single_layer_is_scaled_without_a_warning():
    mix = ScalarMix()
    mix.build((3, 4, 1, 5))
    mix.gamma.assign(0.7)
    np.testing.assert_allclose(numpy(mix(X[:, :, :1])), 0.7 * X[:, :, 0], rtol=1e-6)


def test_layer_norm_without_a_mask_and_without_a_token():
    (normed,) = reference.layer_norm([X.reshape(12, 2, 5)])
    expected = reference.scalar_mix(normed, np.array([0.3, -1.2]), 0.7).reshape(3, 4, 5)
    np.testing.assert_allclose(numpy(make(layer_norm=True)(X)), expected, atol=1e-5)
    assert not call(make(layer_norm=True), mask=np.zeros((3, 4), bool)).any()


def test_layer_norm_of_each_token_alone():
    centred = X - X.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True))
    expected = reference.scalar_mix(normed, np.array([0.3, -1.2]), 0.7)
    found = call(make(layer_norm="token"))
    np.testing.assert_allclose(found, expected * MASK[..., None], atol=1e-5)
    alone = call(make(layer_norm="token"), X[:1, :2], MASK[:1, :2])
    np.testing.assert_allclose(alone, found[:1, :2], atol=1e-6)
    # With layer_norm=True the other sentences of the batch count.
    apart = call(make(layer_norm=True), X[:1, :2], MASK[:1, :2])
    assert np.abs(apart - call(make(layer_norm=True))[:1, :2]).max() > 0.1
    constant = call(make(layer_norm="token"), np.ones_like(X))
    assert not constant.any()


def test_layer_norm_in_float16_does_not_overflow():
    x = (100 * RNG.normal(size=(8, 64, 3, 64))).astype("float16")
    found = numpy(ScalarMix(layer_norm=True, dtype="mixed_float16")(x))
    assert np.isfinite(found).all() and 0.4 < found.std() < 0.8


@pytest.mark.parametrize("layer_norm", [False, True, "token"])
@pytest.mark.parametrize("junk", [np.nan, np.inf])
def test_whatever_stands_in_the_padding(layer_norm, junk):
    mix = make(layer_norm=layer_norm)
    x = np.where(MASK[..., None, None], X, junk).astype("float32")
    np.testing.assert_array_equal(call(mix, x, MASK * 2.0), call(mix))  # a mask of numbers
    # A layer without variance makes numbers of padding that float16 cannot represent.
    half = ScalarMix(layer_norm=layer_norm, dtype="mixed_float16")
    found = numpy(half(np.ones((1, 2, 3, 6), "float32"), mask=np.array([[True, False]])))
    assert not found[0, 1].any() and np.isfinite(found).all()


@pytest.mark.skipif(BACKEND == "jax", reason="JAX has 64 bits by a flag only")
def test_float64_is_normalised_in_float64():
    x = RNG.normal(size=(2, 3, 2, 5))
    mix = ScalarMix(layer_norm="token", dtype="float64")
    found = numpy(mix(keras.ops.convert_to_tensor(x, "float64")))
    centred = x - x.mean(-1, keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    np.testing.assert_allclose(found, normed.mean(axis=2), atol=1e-12)


def test_dropout_acts_on_the_mix_in_training_only():
    mix = make(dropout=0.5)
    without = call(make())
    np.testing.assert_array_equal(call(mix, training=False), without)
    dropped = call(mix, training=True)
    kept = dropped != 0
    np.testing.assert_allclose(dropped[kept], 2 * without[kept], atol=1e-5)
    assert 0 < kept[MASK].mean() < 1


def test_penalty_is_on_the_scalars_before_the_softmax():
    (penalty,) = make(l2=0.1).losses
    assert float(numpy(penalty)) == pytest.approx(0.1 * (0.3**2 + 1.2**2), rel=1e-5)
    assert make().losses == []


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"dropout": 1.0}, r"dropout in \[0, 1\). Received: dropout=1.0"),
        ({"dropout": None}, "dropout in .* Received: dropout=None"),
        ({"l2": -1}, "l2 of 0 or more. Received: l2=-1"),
        ({"layer_norm": 1}, """False, True or "token". Received: layer_norm=1"""),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        ScalarMix(**arguments)


def test_bad_shapes():
    with pytest.raises(ValueError, match=r"ScalarMix expects .* Received: shape=\(3, 4, 5\)"):
        ScalarMix()(X[:, :, 0])
    message = r"with a known number of layers. Received: shape=\(None, None, None, 5\)"
    with pytest.raises(ValueError, match=message):
        ScalarMix()(keras.Input((None, None, 5)))
    representations = {name: keras.Input((None, 5)) for name in ("token", "forward_1", "a", "b")}
    with pytest.raises(ValueError, match="of layers. Received: shape={.*'forward_1': "):
        ScalarMix()(representations)
    with pytest.raises(ValueError, match="expected axis 2 of input shape to have value 2"):
        make()(X[:, :, :1])
    with pytest.raises(ValueError, match="no layer_weights before it is built"):
        ScalarMix().layer_weights  # noqa: B018
