"""The scripts that make a preset of presets: grow.py, average.py and pretrain_on_gpu.py."""

import json
import sys

import keras
import numpy as np
import pytest

from examples import average, grow, pretrain_on_gpu
from keras_elmo.pretraining import Scorer, read_language_model, write_language_model
from keras_elmo.text_input import read_sentences
from tests.conftest import make_config, numpy, tokenize
from tests.pretraining.test_language_model import (
    SENTENCES,
    VOCABULARY,
    make_batch,
    make_model,
    tensors,
)

GROWN = {
    "lstm_dim": 27,
    "projection_dim": 8,
    "character_embedding_dim": 7,
    # More of each filter, and other filters.
    "filters": ((1, 4), (1, 2), (2, 5), (3, 2), (4, 11), (5, 3)),
}


def representations(model):
    ids = tokenize([["<S>", *s, "</S>"] for s in SENTENCES], model.config.max_characters_per_token)
    mask = (ids > 0).any(axis=2)
    found, _ = model.bilm(keras.ops.convert_to_tensor(ids), keras.ops.convert_to_tensor(mask))
    return {name: numpy(x) for name, x in found.items()}


def larger_config(changes):
    return make_config(cell_clip=1.0, projection_clip=0.5, **changes)


def nll(model):
    """Of every prediction under the full softmax."""
    return numpy(model.score(tensors(make_batch())))


def test_a_grown_bilm_computes_what_the_smaller_one_did():
    small = make_model()
    large = grow.grow_language_model(small, larger_config(GROWN), noise=0.0)
    assert large.count_params() > small.count_params()
    before, after = representations(small), representations(large)
    width = small.config.projection_dim
    for layer in ("token", *small.config.lstm_names):
        np.testing.assert_allclose(after[layer][..., :width], before[layer], atol=1e-5)
        assert after[layer].shape[-1] == large.config.projection_dim
        assert np.abs(after[layer][:, :2, width:]).max() > 0.01  # the new features
    np.testing.assert_allclose(nll(large), nll(small), atol=1e-5)


def run(script, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", [script.__name__, *map(str, arguments)])
    script.main()


def test_grow_writes_a_preset(tmp_path, monkeypatch):
    small = make_model()
    write_language_model(tmp_path / "small", small, VOCABULARY, tokenizer="penn")
    options = larger_config(GROWN).to_options()
    (tmp_path / "options.json").write_text(json.dumps(options))
    paths = (tmp_path / "small", tmp_path / "large")
    run(grow, monkeypatch, *paths, "--options", tmp_path / "options.json")
    large, vocabulary = read_language_model(tmp_path / "large")
    assert vocabulary == VOCABULARY and large.config.to_options() == options
    # The noise is small, but the copies of a cell differ.
    assert 0 < np.abs(nll(large) - nll(small)).max() < 0.1
    columns = numpy(large.bilm.lstms[0].kernel).T
    assert len(np.unique(columns, axis=0)) == len(columns)
    assert json.loads((tmp_path / "large" / "tokenizer.json").read_text()) == {"name": "penn"}


def test_average_writes_a_preset(tmp_path, monkeypatch):
    models = [make_model(seed=seed) for seed in (0, 1)]
    for name, model in zip(("one", "two"), models):
        write_language_model(tmp_path / name, model, VOCABULARY, bits=23)
    paths = [tmp_path / name for name in ("one", "two", "both")]
    run(average, monkeypatch, *paths, "--share", "0.25")
    found, vocabulary = read_language_model(tmp_path / "both")
    assert vocabulary == VOCABULARY
    for weight, one, two in zip(found.weights, *(model.weights for model in models)):
        if weight.path.endswith("kernel"):
            expected = 0.75 * numpy(one) + 0.25 * numpy(two)
            np.testing.assert_allclose(numpy(weight), expected, atol=2e-2)
    write_language_model(tmp_path / "two", make_model(make_config()), VOCABULARY)
    with pytest.raises(SystemExit, match="presets of equal sizes"):
        run(average, monkeypatch, *paths)


@pytest.mark.extended
def test_pretrain_on_gpu_trains_the_same_model(corpus, small_preset, tmp_path, monkeypatch, capsys):
    pytest.importorskip("jax")
    heldout = read_sentences(corpus / "heldout-raw.txt")

    def perplexity(preset):
        return Scorer(*read_language_model(preset)).perplexity(heldout)["perplexity"]

    options = ["--rows", "4", "--minutes", "0.05", "--learning-rate", "0.02", "--bits", "23"]
    run(
        pretrain_on_gpu,
        monkeypatch,
        *(corpus, tmp_path / "out", "--init-from", small_preset, "--distinct", "64"),
        *("--precision", "float32", *options),
    )
    before, *_, after = (
        float(line.split()[-1])
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("perplexity")
    )
    assert before == pytest.approx(perplexity(small_preset), rel=1e-3)
    assert after == pytest.approx(perplexity(tmp_path / "out"), rel=1e-2)  # 8 bits in the softmax
    assert after < 12 < before  # twelve words in random order
    assert not (tmp_path / "out" / "tokenizer.json").exists()  # neither folder has it


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"lstm_dim": 9}, "lstm_dim=9 is less than 10"),
        ({"n_layers": 3}, "n_layers=3 is not 2"),
        ({"cell_clip": None}, "cell_clip=None is not 1.0"),
        ({"filters": ((1, 3), (2, 4), (4, 9))}, r"filters=.*\(2, 4\).* do not contain \(\(1, 3\)"),
        ({"projection_dim": 10}, "the larger biLM lacks a projection"),
        ({"lstm_dim": 9, "n_layers": 1}, "lstm_dim=9 is less than 10; n_layers=1 is not 2$"),
    ],
)
def test_what_cannot_grow(changes, message):
    config = make_config(**{"cell_clip": 1.0, "projection_clip": 0.5, **changes})
    with pytest.raises(ValueError, match=f"A biLM can grow in lstm_dim, .* Received: .*{message}"):
        grow.check_growth(make_model().config, config)


def test_each_filter_needs_another_one():
    two = make_config(filters=((1, 3), (1, 2), (2, 5)))
    grow.check_growth(two, make_config(filters=((1, 4), (1, 6), (2, 5))))
    with pytest.raises(ValueError, match="do not contain"):
        grow.check_growth(two, make_config(filters=((1, 12), (2, 5))))
