import itertools

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_elmo import CRF
from tests.conftest import BACKEND, numpy, only_tensorflow

pytestmark = pytest.mark.backends("torch")

RNG = np.random.default_rng(0)
# Many tests share this shape, because JAX compiles for each shape.
LENGTHS = [5, 3, 1, 0]
MASK = np.arange(5) < np.array(LENGTHS)[:, None]


def make(n_tags=3, seed=0, scale=1.0, **kwargs):
    """Return a CRF with random weights, and the weights: transitions, start, end."""
    crf = CRF(**kwargs)
    crf.build((None, None, n_tags))
    rng = np.random.default_rng(seed)
    weights = [rng.normal(0, scale, w.shape).astype("float32") for w in crf.weights]
    crf.set_weights(weights)
    assert [w.name for w in crf.weights] == ["transitions", "start", "end"]
    return crf, weights


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


def random_batch(n_tags=3, lengths=LENGTHS, seed=0, scale=1.0):
    """Return scores and tags of 5 tokens; padding has the tag -1."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0, scale, (len(lengths), 5, n_tags)).astype("float32")
    tags = rng.integers(n_tags, size=(len(lengths), 5))
    return x, np.where(np.arange(5) < np.array(lengths)[:, None], tags, -1)


def expected_log_likelihood(x, tags, weights):
    found = []
    for row, own in zip(x, tags):
        scores = [*all_scores(row[own >= 0], weights).values()]
        own_score = sequence_score(row[own >= 0], own[own >= 0], weights)
        found.append(own_score - np.logaddexp.reduce(scores))
    return found


@settings(max_examples=30)
@given(
    st.integers(1, 4),
    st.lists(st.integers(0, 5), min_size=3, max_size=3),
    st.integers(0, 2**20),
    st.sampled_from([0.1, 1.0, 10.0]),
)
def test_against_all_tag_sequences(n_tags, lengths, seed, scale):
    crf, weights = make(n_tags, seed, scale)
    x, tags = random_batch(n_tags, lengths, seed + 1, scale)
    found = numpy(crf.log_likelihood(x, tags))
    expected = expected_log_likelihood(x, tags, weights)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * max(1, scale))
    best = numpy(crf.decode(x, tags >= 0))
    assert best.dtype == "int32" and not best[tags < 0].any()
    for row, n, path in zip(x, lengths, best):
        scores = all_scores(row[:n], weights)
        assert scores[tuple(path[:n].tolist())] >= max(scores.values()) - 1e-5 * scale


@pytest.mark.parametrize("junk", [np.nan, np.inf, 1e30, -1e30])
def test_padding_content_does_not_matter(junk):
    crf, _ = make()
    x, tags = random_batch()
    dirty = np.where(MASK[..., None], x, junk).astype("float32")
    expected = numpy(crf.log_likelihood(x, tags))
    np.testing.assert_array_equal(numpy(crf.log_likelihood(dirty, tags)), expected)
    by_mask = crf.log_likelihood(dirty, np.maximum(tags, 2), MASK)
    by_tags = crf.log_likelihood(x, np.where(MASK, np.maximum(tags, 2), -100))
    np.testing.assert_array_equal(numpy(by_mask), numpy(by_tags))
    assert expected[3] == 0
    best = numpy(crf.decode(x, MASK))
    np.testing.assert_array_equal(numpy(crf.decode(dirty, MASK)), best)
    np.testing.assert_array_equal(numpy(crf.decode(x[:, :3], MASK[:, :3]))[1:], best[1:, :3])


def test_masked_tokens_inside_a_sentence_are_skipped():
    crf, weights = make()
    x, tags = random_batch()
    tags[0, 1], tags[0, 3], tags[1, 0] = -1, -1, -1
    np.testing.assert_allclose(
        numpy(crf.log_likelihood(x, tags)),
        expected_log_likelihood(x, tags, weights),
        rtol=1e-5,
        atol=1e-5,
    )
    best = numpy(crf.decode(x, tags >= 0))[0, [0, 2, 4]]
    scores = all_scores(x[0, [0, 2, 4]], weights)
    assert tuple(best) == max(scores, key=scores.get)


def test_long_sentences_and_large_scores():
    """The scores are exact after the addition, too. The sums of 600 tokens would not be."""
    crf, _ = make()
    x = np.round(RNG.normal(size=(1, 600, 3)) * 1024).astype("float32") / 1024
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
    rounded = keras.ops.cast(x, "float16")
    np.testing.assert_array_equal(numpy(half(x)), x)  # float32 inputs are not rounded
    found = numpy(half.log_likelihood(rounded, tags))
    assert np.isfinite(found).all()
    exact = numpy(keras.ops.cast(rounded, "float32"))
    np.testing.assert_array_equal(found, numpy(full.log_likelihood(exact, tags)))
    np.testing.assert_array_equal(numpy(half.decode(rounded)), numpy(full.decode(exact)))


def embed(x, mask=True):
    """Return a model whose scores are trainable rows of a table, and its inputs."""
    batch, tokens, n_tags = x.shape
    ids = np.arange(1, batch * tokens + 1).reshape(batch, tokens)
    inputs = keras.Input((None,), dtype="int32")
    table = keras.layers.Embedding(ids.size + 1, n_tags, mask_zero=mask, name="table")
    crf = CRF()
    scores = table(inputs)
    model, tagger = keras.Model(inputs, crf(scores)), keras.Model(inputs, crf.decode(scores))
    table.set_weights([np.concatenate([np.zeros((1, n_tags)), x.reshape(-1, n_tags)])])
    crf.set_weights(make(n_tags)[1])
    return model, tagger, crf, ids


def jit():
    return "auto" if BACKEND == "torch" else True


def test_gradient_in_fit():
    """One step of SGD at rate 1 subtracts the gradient, also with padding and empty sentences."""
    x, tags = random_batch()
    model, _, crf, ids = embed(x)
    before = model.get_weights()
    model.compile(keras.optimizers.SGD(1.0), loss=crf.loss, jit_compile=jit())
    history = model.fit(np.where(MASK, ids, 0), tags, batch_size=4, verbose=0)

    def loss(table, *weights):
        x = table[1:].reshape(4, 5, 3)
        return -np.mean(expected_log_likelihood(x, tags, weights))

    values = [w.astype("float64") for w in before]
    assert history.history["loss"][0] == pytest.approx(loss(*values), rel=1e-5)
    for value, old, new in zip(values, before, model.get_weights()):
        for place in np.ndindex(value.shape):
            kept = value[place]
            ends = []
            for step in (1e-3, -1e-3):
                value[place] = kept + step
                ends.append(loss(*values))
            value[place] = kept
            gradient = (ends[0] - ends[1]) / 2e-3
            assert old[place] - new[place] == pytest.approx(gradient, abs=1e-5)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("eager", [False, True])
def test_loss_in_a_model(mask, eager):
    """The labels mark the padding, and so does the Keras mask, if there is one."""
    x, tags = random_batch()
    model, tagger, crf, ids = embed(x, mask)
    model.compile(loss=crf.loss, run_eagerly=eager)
    log_p = numpy(crf.log_likelihood(x, tags)).astype("float64")
    ids = np.where(MASK, ids, 0)
    labels = [tags, tags.astype("float32")]
    if mask:
        labels += [np.maximum(tags, 0), np.maximum(tags, 0).astype("uint8")]
    for y in labels:
        assert model.evaluate(ids, y, verbose=0) == pytest.approx(-log_p.mean(), rel=1e-5)
    weights = np.array([1.0, 2.0, 0.5, 3.0])
    loss = model.evaluate(ids, tags, sample_weight=weights, verbose=0)
    assert loss == pytest.approx(-(log_p * weights).mean(), rel=1e-5)
    assert numpy(crf.loss(tags, x, weights[:, None])) == pytest.approx(loss, rel=1e-5)
    np.testing.assert_array_equal(model.predict(ids, verbose=0)[MASK], x[MASK])
    if mask:
        best = numpy(crf.decode(x, MASK))
        tagger.compile(run_eagerly=eager, jit_compile=False if eager else jit())
        np.testing.assert_array_equal(tagger.predict(ids, verbose=0), best)
        for output in (model(ids), tagger(ids)):
            np.testing.assert_array_equal(numpy(output._keras_mask), MASK)


@pytest.mark.parametrize("how", ["eager", "graph", "xla"])
def test_a_tag_that_does_not_exist_is_an_error_or_nan(how):
    if BACKEND == "torch" and how != "eager":
        pytest.skip("PyTorch is eager")
    x, tags = random_batch()
    model, _, crf, ids = embed(x)
    model.compile(loss=crf.loss, run_eagerly=how == "eager", jit_compile=how == "xla")
    wrong = np.where(MASK, tags, 9)  # in the padding only
    ids = np.where(MASK, ids, 0)
    assert np.isfinite(model.evaluate(ids, wrong, verbose=0))
    wrong[1, 0] = 3
    if how == "xla":
        assert np.isnan(model.evaluate(ids, wrong, verbose=0))
        return
    error: type = ValueError
    if how == "graph":
        import tensorflow as tf

        error = tf.errors.InvalidArgumentError
    with pytest.raises(error, match="tags, below n_tags=3"):
        model.evaluate(ids, wrong, verbose=0)


def test_saved_models(tmp_path):
    x, tags = random_batch()
    model, tagger, crf, ids = embed(x)
    ids = np.where(MASK, ids, 0)
    model.compile("adam", loss=crf.loss)
    model.fit(ids, tags, verbose=0)
    model.save(tmp_path / "model.keras")
    tagger.save(tmp_path / "tagger.keras")
    best = tagger.predict(ids, verbose=0)
    again = keras.saving.load_model(tmp_path / "tagger.keras")
    np.testing.assert_array_equal(again.predict(ids, verbose=0), best)
    again = keras.saving.load_model(tmp_path / "model.keras")
    its_crf = again.get_layer(crf.name)
    assert again.loss.log_likelihood.__self__ is its_crf and its_crf is not crf
    np.testing.assert_array_equal(numpy(its_crf.decode(again(ids))), best)
    model.fit(ids, tags, verbose=0)
    again.fit(ids, tags, verbose=0)
    for a, b in zip(model.get_weights(), again.get_weights()):
        np.testing.assert_allclose(a, b, atol=1e-6)


@keras.saving.register_keras_serializable(package="tests")
class Tagger(keras.Model):
    """A subclassed model. Saving searches its attributes for weights."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(3)
        self.tags = CRF(name="tags")

    def call(self, inputs):
        return self.tags(self.dense(inputs))


def test_saved_subclass(tmp_path):
    x, tags = random_batch()
    model = Tagger()
    model.compile("adam", loss=model.tags.loss)
    model.fit(x, tags, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))
    with pytest.raises(ValueError, match="with the loss of the CRF in that model"):
        again.evaluate(x, tags, verbose=0)


def test_loss_is_not_bound_to_a_crf_outside_the_model():
    model, _, crf, ids = embed(random_batch()[0])
    model.compile("adam", loss=crf.loss)
    again = keras.models.model_from_json(model.to_json())
    with pytest.raises(ValueError, match="with the loss of the CRF in that model"):
        again.evaluate(ids, ids * 0, verbose=0)
    again.compile("adam", loss=again.get_layer(crf.name).loss)
    assert np.isfinite(again.evaluate(ids, ids * 0, verbose=0))


@only_tensorflow
def test_loss_in_a_function_and_as_a_metric():
    import tensorflow as tf

    crf, _ = make()
    x, tags = random_batch()
    expected = float(numpy(crf.loss(tags, x)))
    assert numpy(tf.function(crf.loss)(tags, x)) == pytest.approx(expected, rel=1e-6)
    model = keras.Sequential([keras.Input((None, 3)), crf])
    model.compile(loss=crf.loss, metrics=[crf.loss])
    assert model.evaluate(x, tags, verbose=0) == pytest.approx([expected] * 2, rel=1e-6)


def test_lists_are_as_good_as_arrays():
    crf, _ = make()
    x, tags = random_batch()
    found = crf.loss(tags.tolist(), x.tolist(), [1.0, 2.0, 0.5, 3.0])
    expected = crf.loss(tags, x, np.array([1.0, 2.0, 0.5, 3.0]))
    np.testing.assert_array_equal(numpy(found), numpy(expected))
    np.testing.assert_array_equal(numpy(crf.decode(x.tolist())), numpy(crf.decode(x)))


@pytest.mark.skipif(BACKEND == "jax", reason="no array of JAX has an attribute for the mask")
def test_the_loss_does_not_read_tags_that_the_keras_mask_excludes():
    crf, _ = make()
    x, tags = random_batch()
    scores = keras.ops.convert_to_tensor(x, "float32")
    scores._keras_mask = keras.ops.convert_to_tensor(MASK)
    for excluded in (np.nan, 9):
        found = crf.loss(np.where(MASK, tags, excluded), scores)
        np.testing.assert_array_equal(numpy(found), numpy(crf.loss(tags, scores)))


def test_errors():
    crf, _ = make()
    x, tags = random_batch()
    with pytest.raises(ValueError, match=r"CRF expects .* Received: shape=\(4, 5\)"):
        CRF()(x[..., 0])
    with pytest.raises(ValueError, match=r"n_tags known. Received: shape=\(None, 5, None\)"):
        CRF()(keras.Input((5, None)))
    with pytest.raises(ValueError, match="expected axis 2 of input shape to have value 3"):
        crf(x[..., :2])
    with pytest.raises(ValueError, match="no log_likelihood before it is built"):
        CRF().log_likelihood(x, tags)
    with pytest.raises(ValueError, match="expected axis 2 of input shape to have value 3"):
        crf.log_likelihood(x[..., :2], tags)
    for wrong in (tags[..., None], x, tags[:, :1], tags[:1]):
        sizes = ", ".join(map(str, wrong.shape))
        shapes = rf"of shape \(batch, tokens\). Received: shape=\({sizes}\)"
        for call in (crf.log_likelihood, lambda x, tags: crf.loss(tags, x)):
            with pytest.raises(ValueError, match=f"CRF expects tags {shapes}"):
                call(x, wrong)
        for call in (crf.decode, lambda x, mask: crf.log_likelihood(x, tags, mask)):
            with pytest.raises(ValueError, match=f"CRF expects a mask {shapes}"):
                call(x, wrong >= 0)
    for tag in (0.5, np.nan, 3):
        wrong = np.where(MASK, tag, -1)
        for call in (crf.log_likelihood, lambda x, tags: crf.loss(tags, x)):
            with pytest.raises(ValueError, match=f"whole numbers as tags, .* Received: tag={tag}"):
                call(x, wrong)
    with pytest.raises(ValueError, match=r"one sample_weight per sentence.* shape=\(4, 5\)"):
        crf.loss(tags, x, sample_weight=MASK)
