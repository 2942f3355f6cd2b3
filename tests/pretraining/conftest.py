"""A corpus small enough to train on in a test, and the runs that the tests share."""

import shutil

import keras
import numpy as np
import pytest

from keras_elmo.formats.vocabulary import read_vocabulary
from keras_elmo.pretraining import (
    BiLanguageModel,
    Pretraining,
    Recipe,
    prepare,
    write_language_model,
)
from tests.conftest import make_config

# Few weights: what costs time is to trace or compile them.
CONFIG = make_config(n_layers=1, n_highway=0, filters=((2, 5), (3, 4)))
RECIPE = {
    "batch_tokens": 64,
    "optimizer": "muon",
    "learning_rate": 0.02,
    "warmup": 3,
    "negatives": 8,
    "dropout": 0.1,
    "max_tokens": 7,
}


def write_corpus(folder):
    """Prepare sentences of twelve words in random order."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(1200):
        words = [(rng.integers(0, 12) + 5 * k) % 12 for k in range(rng.integers(2, 9))]
        lines.append(" ".join("abcdefghijkl"[w] * (1 + w % 3) for w in words))
    raw = folder / "raw.txt"
    raw.write_text("\n".join(lines))
    settings = {"sentences": "lines", "tokenizer": "whitespace", "shards": 2}
    prepare(raw, folder / "corpus", **settings, heldout_share=0.5, progress=False)
    return folder / "corpus"


def make_run(folder, corpus, steps, resume=False, save_every=4, config=CONFIG, **changes):
    names = ("init_from", "own_vocabulary")
    settings = {name: changes.pop(name) for name in names if name in changes}
    recipe = Recipe(**{**RECIPE, "steps": steps, **changes})
    return Pretraining(
        folder, corpus, config, recipe, save_every=save_every, resume=resume, **settings
    )


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def a_run(corpus, tmp_path_factory):
    """The folder of a run that did its 8 steps."""
    folder = tmp_path_factory.mktemp("run")
    make_run(folder, corpus, 8).run(progress=False)
    return folder


@pytest.fixture
def finished(a_run, tmp_path):
    return shutil.copytree(a_run, tmp_path / "run")


@pytest.fixture(scope="session")
def small_preset(corpus, tmp_path_factory):
    """A preset that predicts the tokens of the corpus."""
    vocabulary = read_vocabulary(corpus / "vocab.txt")
    keras.utils.set_random_seed(8)
    model = BiLanguageModel(CONFIG, len(vocabulary), n_negatives=None)
    write_language_model(folder := tmp_path_factory.mktemp("preset"), model, vocabulary)
    return folder
