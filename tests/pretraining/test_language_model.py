"""The bidirectional language model against the executable specification."""

import keras
import numpy as np
import pytest

from keras_elmo.formats.bilm_weights import bilm_mapping
from keras_elmo.formats.weight_mapping import extract, variables_by_path
from keras_elmo.pretraining.corpus import Batcher
from keras_elmo.pretraining.language_model import BiLanguageModel
from keras_elmo.pretraining.scores import Scorer
from tests import reference
from tests.conftest import make_config, numpy
from tests.gradients import gradients

pytestmark = pytest.mark.backends

VOCABULARY = ["<S>", "</S>", "<UNK>", "The", "fox", "Café", "!"]
SENTENCES = [["The", "quick", "fox", "!"], ["Café"], ["fox", "fox", "nowhere"], ["!"] * 6]


def make_model(config=None, seed=0, **kwargs):
    model = BiLanguageModel(
        config or make_config(cell_clip=1.0, projection_clip=0.5),
        len(VOCABULARY),
        **{"n_negatives": None, "dropout": 0.0, **kwargs},
    )
    rng = np.random.default_rng(seed)
    for weight in model.trainable_weights:
        weight.assign(rng.normal(0, 0.4, weight.shape))
    return model


def make_batch(sentences=SENTENCES, **kwargs):
    batcher = Batcher(make_config(), VOCABULARY, **{"fixed_shapes": False, **kwargs})
    encoded = batcher.encode(sentences)
    [rows] = batcher.arrange(encoded.lengths)
    return batcher.batch(encoded, rows)


def tensors(batch):
    return {name: keras.ops.convert_to_tensor(array) for name, array in batch.items()}


def expected_log_probabilities(model, sentence):
    """(2, tokens + 1), from the NumPy specification."""
    options = model.config.to_options()
    weights = extract(bilm_mapping(model.config), variables_by_path(model.bilm))
    rows = [
        reference.character_row(t, options["char_cnn"]["max_characters_per_token"])
        for t in ["<S>", *sentence, "</S>"]
    ]
    found, _ = reference.bilm(rows, options, weights)
    kernel, bias = (
        numpy(w.value).astype("float64") for w in (model.softmax_kernel, model.softmax_bias)
    )
    ids = [VOCABULARY.index(t) if t in VOCABULARY else 2 for t in sentence]
    last = model.config.n_layers
    log_p = []
    for outputs, targets in (
        (found[f"forward_{last}"][:-1], [*ids, 1]),
        (found[f"backward_{last}"][1:], [0, *ids]),
    ):
        logits = outputs @ kernel.T + bias
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        log_p.append(logits[np.arange(len(targets)), targets])
    return np.array(log_p)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cell_clip": 0.5, "projection_clip": 0.2, "use_skip_connections": False},
        {"n_layers": 1, "projection_dim": 10, "cell_clip": None},
        {"n_layers": 3, "n_highway": 2, "activation": "tanh"},
    ],
)
def test_log_probabilities_are_those_of_the_specification(changes):
    model = make_model(make_config(**changes))
    found = Scorer(model, VOCABULARY, batch_tokens=14).log_probabilities(SENTENCES)
    for sentence, ours in zip(SENTENCES, found, strict=True):
        expected = expected_log_probabilities(model, sentence)
        assert ours.dtype == "float32" and ours.shape == (2, len(sentence) + 1)
        np.testing.assert_allclose(ours, expected, atol=1e-5)


@pytest.mark.backends("torch")
def test_loss_is_the_mean_of_both_directions_per_prediction():
    model = make_model()
    expected = [expected_log_probabilities(model, sentence) for sentence in SENTENCES]
    expected = -np.concatenate(expected, axis=1).mean()
    for settings in ({}, {"devices": 3}, {"fixed_shapes": True}):
        loss = float(numpy(model(tensors(make_batch(**settings)))))
        np.testing.assert_allclose(loss, expected, rtol=1e-5)


def test_perplexity():
    model = make_model()
    scores = Scorer(model, VOCABULARY).perplexity(iter([*SENTENCES, []]))
    total = np.concatenate([expected_log_probabilities(model, s) for s in SENTENCES], axis=1)
    forward, backward = -total.mean(axis=1)
    np.testing.assert_allclose(scores["forward"], np.exp(forward), rtol=1e-5)
    np.testing.assert_allclose(scores["backward"], np.exp(backward), rtol=1e-5)
    np.testing.assert_allclose(scores["perplexity"], np.exp((forward + backward) / 2), rtol=1e-5)
    assert scores["tokens"] == 14 and scores["predictions"] == 18
    assert scores["oov_share"] == 2 / 14
    written_out = Scorer(model, VOCABULARY).perplexity([[VOCABULARY[3], "<UNK>"]])
    assert written_out["oov_share"] == 1 / 2


def test_what_is_not_scored():
    scorer = Scorer(make_model(), VOCABULARY)
    with pytest.raises(ValueError, match="expects text. Received: no token"):
        scorer.perplexity([[]])
    with pytest.raises(ValueError, match="expects tokens in every sentence"):
        scorer.log_probabilities([[]])
    for score in (scorer.perplexity, scorer.log_probabilities):
        with pytest.raises(ValueError, match="every sentence to be a list of tokens. Received: 'a"):
            score(["a b"])


def test_float32_whatever_the_policy():
    expected = Scorer(make_model(), VOCABULARY).perplexity(SENTENCES)
    before = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy("mixed_float16")
        model = make_model()
        assert Scorer(model, VOCABULARY).perplexity(SENTENCES) == expected
        assert {weight.dtype for weight in model.trainable_weights} == {"float32"}
    finally:
        keras.config.set_dtype_policy(before)


@pytest.mark.backends("torch")
def test_gradient_against_finite_differences():
    model = make_model()
    batch = tensors(make_batch())
    found = gradients(lambda: model(batch), model)
    rng = np.random.default_rng(1)
    direction = [rng.normal(size=g.shape) for g in found]
    slope = sum((g * d).sum() for g, d in zip(found, direction, strict=True))
    values = [numpy(w.value) for w in model.trainable_weights]

    def loss_at(step):
        for weight, value, d in zip(model.trainable_weights, values, direction, strict=True):
            weight.assign(value + step * d)
        return float(numpy(model(batch)))

    measured = (loss_at(1e-3) - loss_at(-1e-3)) / 2e-3
    np.testing.assert_allclose(slope, measured, rtol=0.02)


def test_dropout_acts_in_training_only_and_each_time_anew():
    model = make_model(dropout=0.5)
    batch = tensors(make_batch())
    at_rest = [float(numpy(model(batch))) for _ in range(2)]
    training = [float(numpy(model(batch, training=True))) for _ in range(2)]
    assert at_rest[0] == at_rest[1]
    assert len({at_rest[0], *training}) == 3


@pytest.mark.backends("torch")
def test_negatives_are_drawn_anew_and_do_not_move_the_loss_far():
    model, full = make_model(n_negatives=5), make_model()
    batch = tensors(make_batch())
    losses = [float(numpy(model(batch))) for _ in range(60)]
    assert len(set(losses)) > 30
    assert abs(np.mean(losses) - float(numpy(full(batch)))) < 0.1


def test_as_many_negatives_as_the_vocabulary_are_the_full_softmax():
    full, batch = make_model(), tensors(make_batch())
    expected = float(numpy(full(batch)))
    for n_negatives in (7, 4096):
        model = make_model(n_negatives=n_negatives)
        assert float(numpy(model(batch))) == expected
    for n_negatives in (0, -3):
        with pytest.raises(ValueError, match=f"n_negatives to be a .*n_negatives={n_negatives}"):
            make_model(n_negatives=n_negatives)


@pytest.mark.extended
def test_substitutes_are_the_predictions_of_both_directions():
    scorer = Scorer(make_model(), VOCABULARY)
    words = VOCABULARY[3:]
    for sentence in SENTENCES:
        [expected] = scorer.log_probabilities([sentence])
        for position, token in enumerate(sentence):
            found = scorer.substitutes(sentence, position, top=len(VOCABULARY))
            assert all(sorted(t for t, _ in pairs) == sorted(words) for pairs in found.values())
            if token in words:
                columns = {"forward": (0, position), "backward": (1, position + 1)}
                for direction, place in columns.items():
                    np.testing.assert_allclose(
                        dict(found[direction])[token], np.exp(expected[place]), rtol=1e-4
                    )
            product = {
                t: dict(found["forward"])[t] * dict(found["backward"])[t] * (rank + 1)
                for rank, t in enumerate(VOCABULARY)
                if t in words
            }
            for t, p in found["joint"]:
                np.testing.assert_allclose(p, product[t] / sum(product.values()), rtol=1e-4)
    assert scorer.substitutes(SENTENCES[0], -1) == scorer.substitutes(SENTENCES[0], 3)
    assert len(scorer.substitutes(SENTENCES[0], 0, top=2)["joint"]) == 2
    with pytest.raises(IndexError, match="out of range"):
        scorer.substitutes(SENTENCES[0], 4)
    with pytest.raises(ValueError, match="every sentence to be a list of tokens"):
        scorer.substitutes("a sentence", 0)


def test_learns_and_half_precision_products_learn_alike():
    batch = make_batch()
    ends = []
    for product_dtype in ("float32", "bfloat16"):
        model = make_model(make_config(), product_dtype=product_dtype)
        model.compile(keras.optimizers.Adam(0.02), jit_compile=False)
        losses = [model.train_on_batch(batch) for _ in range(25)]
        ends.append(float(numpy(model(tensors(batch)))))
        assert ends[-1] < 0.6 * float(losses[0])
    assert 0 < abs(ends[0] - ends[1]) < 0.1


def test_dropout_acts_on_the_input_of_every_layer():
    model, seen = make_model(make_config(n_layers=3)), []
    x = keras.ops.ones((4, 2, 6))
    model.bilm.run_direction("forward", x, dropout=lambda y: seen.append(tuple(y.shape)) or y)
    assert seen == [(4, 2, 6)] * 3


def test_the_perplexity_of_a_bilm_that_diverged_is_infinite():
    """Without a warning, which would be an error here."""
    model = make_model()
    model.softmax_bias.assign([0, 0, 0, 0, 0, 0, 5000])
    scores = Scorer(model, VOCABULARY).perplexity([["The", "fox"]])
    assert scores["perplexity"] == scores["forward"] == np.inf
