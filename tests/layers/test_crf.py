import itertools

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers

from keras_elmo import CRF
from tests.conftest import BACKEND, numpy

pytestmark = pytest.mark.backends("torch")

# Many tests share this shape, because JAX compiles for each shape.
MASK = np.arange(5) < np.array([5, 3, 1, 0])[:, None]


def make(n_tags=3, seed=0, scale=1.0, **kwargs):
    """Return a CRF with random weights, and the weights: transitions, start, end."""
    crf = CRF(**kwargs)
    crf.build((None, None, n_tags))
    rng = np.random.default_rng(seed)
    weights = [rng.normal(0, scale, w.shape).astype("float32") for w in crf.weights]
    crf.set_weights(weights)
    assert [w.name for w in crf.weights] == ["transitions", "start", "end"]
    return crf, weights


def random_batch(n_tags=3, mask=MASK, seed=0, scale=1.0):
    """Return scores and tags. Some tags are unknown; those of padding do not exist."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0, scale, (*mask.shape, n_tags)).astype("float32")
    return x, np.where(mask, rng.integers(-1, n_tags, size=mask.shape), 9)


def sequence_score(x, tags, weights):
    """Compute the score of tags by its definition, in float64."""
    transitions, start, end = (w.astype("float64") for w in weights)
    if not len(tags):
        return 0.0
    score = start[tags[0]] + sum(x[t, tag] for t, tag in enumerate(tags)) + end[tags[-1]]
    return score + sum(transitions[a, b] for a, b in itertools.pairwise(tags))


def all_scores(x, weights):
    """Return the score of every tag sequence of a sentence without padding."""
    sequences = itertools.product(range(x.shape[1]), repeat=len(x))
    return {tags: sequence_score(x.astype("float64"), tags, weights) for tags in sequences}


def expected_log_likelihood(x, tags, weights, mask=MASK):
    found = []
    for row, labels, real in zip(x, tags, mask):
        scores = all_scores(row[real], weights)
        fits = (
            score
            for path, score in scores.items()
            if all(label in (-1, tag) for label, tag in zip(labels[real], path))
        )
        found.append(np.logaddexp.reduce([*fits]) - np.logaddexp.reduce([*scores.values()]))
    return np.array(found)


@pytest.mark.backends
@settings(max_examples=30)
@given(
    st.integers(1, 4),
    st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=3, max_size=3),
    st.integers(0, 2**20),
    st.sampled_from([0.1, 1.0, 10.0]),
    st.sampled_from([np.nan, np.inf, 1e30, -1e30]),
)
def test_against_all_tag_sequences(n_tags, mask, seed, scale, padding):
    """Padding may be anywhere, with any scores and tags."""
    crf, weights = make(n_tags, seed, scale)
    mask = np.array(mask)
    x, tags = random_batch(n_tags, mask, seed + 1, scale)
    x[~mask] = padding
    found = numpy(crf.log_likelihood(x, tags, mask))
    expected = expected_log_likelihood(x, tags, weights, mask)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * max(1, scale))
    best = numpy(crf.decode(x, mask))
    assert best.dtype == "int32" and not best[~mask].any()
    for row, real, path in zip(x, mask, best):
        scores = all_scores(row[real], weights)
        assert scores[tuple(path[real].tolist())] >= max(scores.values()) - 1e-5 * scale


def test_potentials():
    """Their sum along a path is the score of the tags, relative to the largest of each token."""
    crf, weights = make()
    x, _ = random_batch()
    potentials = crf(x, mask=MASK)
    assert potentials.shape == (4, 5, 3, 3) and not hasattr(potentials, "_keras_mask")
    before, tags = [2, 1, 0, 2, 0], [1, 0, 2, 0, 1]  # any tag before the first
    x -= x.max(axis=-1, keepdims=True)
    found = numpy(potentials)[0, range(5), before, tags].sum()
    assert found == pytest.approx(sequence_score(x[0], tags, weights), rel=1e-5)
    padding = np.where(np.eye(3), 0, np.float32(-1e30))
    np.testing.assert_array_equal(numpy(potentials)[~MASK], [padding] * 11)


def test_long_sentences_and_large_scores():
    """The scores are exact after the addition, too. The sums of 600 tokens would not be."""
    crf, _ = make()
    x = np.random.default_rng(0).normal(size=(1, 600, 3))
    x = np.round(x * 1024).astype("float32") / 1024
    more = x + np.float32(1e4)
    best = numpy(crf.decode(x))
    np.testing.assert_array_equal(numpy(crf.decode(more)), best)
    log_p, same = (numpy(crf.log_likelihood(scores, best)) for scores in (x, more))
    np.testing.assert_allclose(same, log_p, rtol=1e-5)
    worst = numpy(crf.log_likelihood(1000 * x, (best + 1) % 3))
    assert np.isfinite(worst).all() and worst[0] < -1e5


def test_half_precision():
    """Only the inputs are rounded; the layer computes in float32."""
    full, _ = make(scale=10.0)
    half, _ = make(scale=10.0, dtype="mixed_float16")
    x, tags = random_batch(scale=1e4)
    np.testing.assert_array_equal(numpy(half(x)), numpy(full(x)))  # float32 inputs
    rounded = keras.ops.cast(x, "float16")
    exact = numpy(keras.ops.cast(rounded, "float32"))
    expected = numpy(full.log_likelihood(exact, tags, MASK))
    np.testing.assert_array_equal(numpy(half.log_likelihood(rounded, tags, MASK)), expected)
    np.testing.assert_array_equal(numpy(half.decode(rounded)), numpy(full.decode(exact)))


def embed(x, mask_zero=True):
    """Return models whose scores are trainable rows of a table, and their inputs."""
    table = layers.Embedding(21, 3, mask_zero=mask_zero)
    ids, crf = keras.Input((None,), dtype="int32"), CRF()
    scores = table(ids)
    mask = None if mask_zero else keras.ops.not_equal(ids, 0)
    model = keras.Model(ids, crf(scores, mask=mask))
    tagger = keras.Model(ids, crf.decode(scores, mask))
    table.set_weights([np.concatenate([np.zeros((1, 3)), x.reshape(20, 3)])])
    crf.set_weights(make()[1])
    return model, tagger, crf, np.where(MASK, np.arange(1, 21).reshape(4, 5), 0)


def jit():
    return "auto" if BACKEND == "torch" else True


@pytest.mark.backends
def test_gradient_in_fit():
    """One step of SGD at rate 1 subtracts the gradient, also with padding and empty sentences."""
    x, tags = random_batch()
    model, _, crf, ids = embed(x)
    before = model.get_weights()
    model.compile(keras.optimizers.SGD(1.0), loss=crf.loss, jit_compile=jit())
    history = model.fit(ids, tags, batch_size=4, verbose=0)

    def loss(table, *weights):
        return -np.mean(expected_log_likelihood(table[1:].reshape(4, 5, 3), tags, weights))

    assert history.history["loss"][0] == pytest.approx(loss(*before), rel=1e-5)
    rng = np.random.default_rng(0)
    for k, (old, new) in enumerate(zip(before, model.get_weights())):
        step = rng.normal(0, 1e-3, old.shape)
        plus, minus = (loss(*before[:k], w, *before[k + 1 :]) for w in (old + step, old - step))
        assert np.sum((old - new) * step) == pytest.approx((plus - minus) / 2, rel=1e-3, abs=1e-8)


@pytest.mark.parametrize("mask_zero", [False, True])
@pytest.mark.parametrize("eager", [False, True])
def test_in_a_model(mask_zero, eager):
    """The mask may be an argument, or the mask of Keras."""
    x, tags = random_batch()
    model, tagger, crf, ids = embed(x, mask_zero)
    model.compile(loss=crf.loss, run_eagerly=eager)
    log_p = numpy(crf.log_likelihood(x, tags, MASK)).astype("float64")
    for labels in (tags, tags.astype("float32")):
        loss = model.evaluate(ids, labels, verbose=0)
        assert loss == pytest.approx(-log_p.mean(), rel=1e-5)
    weights = np.array([1.0, 2.0, 0.5, 3.0])
    loss = model.evaluate(ids, tags, sample_weight=weights, verbose=0)
    assert loss == pytest.approx(-(log_p * weights).mean(), rel=1e-5)
    tagger.compile(run_eagerly=eager, jit_compile=False if eager else jit())
    np.testing.assert_array_equal(tagger.predict(ids, verbose=0), numpy(crf.decode(x, MASK)))


@keras.saving.register_keras_serializable(package="tests")
class Tagger(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.parts = [layers.Masking(), layers.Dense(3), CRF()]

    def call(self, inputs):
        for layer in self.parts:
            inputs = layer(inputs)
        return inputs


@pytest.mark.parametrize("kind", ["sequential", "cloned", "subclassed"])
def test_saved_models_load_compiled(kind, tmp_path):
    x, tags = random_batch()
    x *= MASK[..., None]
    parts = [keras.Input((None, 3)), layers.Masking(), layers.Dense(3), CRF()]
    model = Tagger() if kind == "subclassed" else keras.Sequential(parts)
    if kind == "cloned":
        model = keras.models.clone_model(model)
    model.compile("adam", loss=CRF().loss)  # the loss of any CRF
    model.fit(x, tags, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))
    model.fit(x, tags, verbose=0)
    again.fit(x, tags, verbose=0)
    for a, b in zip(model.get_weights(), again.get_weights()):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("how", ["eager", "graph", "xla"])
def test_a_tag_that_does_not_exist_is_an_error_or_nan(how):
    if BACKEND == "torch" and how != "eager":
        pytest.skip("PyTorch is eager")
    x, tags = random_batch()
    model, _, crf, ids = embed(x)
    model.compile(loss=crf.loss, run_eagerly=how == "eager", jit_compile=how == "xla")
    tags[1, 0] = 3
    if how == "eager":
        with pytest.raises(ValueError, match="tags below n_tags=3, .* Received: tag=3"):
            model.evaluate(ids, tags, verbose=0)
    else:
        assert np.isnan(model.evaluate(ids, tags, verbose=0))


def test_errors():
    crf, _ = make()
    x, tags = random_batch()
    with pytest.raises(ValueError, match=r"CRF expects .* Received: shape=\(4, 5\)"):
        CRF()(x[..., 0])
    with pytest.raises(ValueError, match=r"n_tags known. Received: shape=\(None, 5, None\)"):
        CRF()(keras.Input((5, None)))
    with pytest.raises(ValueError, match="expected axis 2 of input shape to have value 3"):
        crf(x[..., :2])
    with pytest.raises(ValueError, match="output of the CRF. Received: shape=.4, 5,"):
        crf.loss(tags, x)
    for wrong in (tags[..., None], x, tags[:, :1], tags[:1]):
        sizes = ", ".join(map(str, wrong.shape))
        shapes = rf"of shape \(batch, tokens\). Received: shape=\({sizes}\)"
        with pytest.raises(ValueError, match=f"CRF expects tags {shapes}"):
            crf.log_likelihood(x, wrong)
        with pytest.raises(ValueError, match=f"CRF expects a mask {shapes}"):
            crf.decode(x, wrong >= 0)
