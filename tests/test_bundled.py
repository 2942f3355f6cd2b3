"""The biLM that comes with the package: whole, small, and it knows something."""

import hashlib
import importlib.util
import pathlib
import re

import numpy as np
import pytest

import keras_elmo
from keras_elmo.checkpoints.presets import bundled
from keras_elmo.pretraining.preset import read_language_model
from keras_elmo.pretraining.scores import Scorer
from tests.conftest import only_tensorflow

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("name", bundled())
def test_files(name):
    folder = bundled()[name]
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    expected = {"options.json", "weights.hdf5", "vocab.txt", "softmax.hdf5", "README.md"}
    largest = {"elmo_mini_en": 20e6}[name]
    assert expected <= set(sizes) and sum(sizes.values()) <= largest
    sums = re.findall(r"^([0-9a-f]{64})  (\S+)$", (folder / "README.md").read_text(), re.M)
    assert {file for _, file in sums} == expected - {"README.md"}
    for digest, file in sums:
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == digest, file


def test_it_tells_senses_apart_where_the_token_representation_can_not():
    spec = importlib.util.spec_from_file_location("words", EXAMPLES / "words_in_context.py")
    words = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(words)
    sentences = [line.split() for line in words.OWN_TEXT["en"].strip().splitlines()]
    layers = keras_elmo.Embedder("elmo_mini_en").embed(sentences)
    # In the text's own order: sport and games, theatre, music; money, river; verb, animal.
    senses = {"play": [6, 6, 3], "bank": [4, 4], "bear": [3, 3]}
    right, total = 0, 0
    for word, counts in senses.items():
        found = [x[:, s.index(word)] for x, s in zip(layers, sentences, strict=True) if word in s]
        vectors = np.stack(found)
        labels = np.repeat(np.arange(len(counts)), counts)
        assert len(labels) == len(vectors)
        np.testing.assert_allclose(vectors[:, 0], vectors[:1, 0].repeat(len(labels), 0), atol=1e-5)
        nearest, _ = words.neighbours(vectors[:, 1], 1)
        right += (labels[nearest[:, 0]] == labels).sum()
        total += len(labels)
    assert right / total > 0.7  # 0.4 by chance


@only_tensorflow
def test_it_predicts_english():
    scorer = Scorer(*read_language_model("elmo_mini_en"))
    sentences = [
        "The children play in the garden until it is dark .".split(),
        "He was born in London and educated at Oxford .".split(),
    ]
    ahead = scorer.perplexity(sentences)["perplexity"]
    shuffled = [sorted(sentence) for sentence in sentences]
    assert ahead < 100 < scorer.perplexity(shuffled)["perplexity"] / 3
