"""Sentences, a tiny Embedder and files for all tests of this folder."""

import random

import h5py
import pytest

from keras_elmo import Embedder
from keras_elmo.embed import layer_file
from tests.conftest import SENTENCES

RANDOM = random.Random(0)
MANY = SENTENCES + [
    ["".join(RANDOM.choices("abcdefgé", k=RANDOM.randint(0, 12))) for _ in range(length)]
    for length in [7, 1, 30, 2, 2, 11]
]


@pytest.fixture(autouse=True)
def keras_engine(monkeypatch):
    """Compute with Keras on every CPU, unless a test names the other engine."""
    monkeypatch.setattr("keras_elmo.embed.embedder.choose_engine", lambda *a: ("keras", ""))


@pytest.fixture(scope="module")
def embedder(tiny_preset):
    return Embedder(tiny_preset, engine="keras")


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.setattr(layer_file, "SENTENCES_IN_A_PART", 3)
    path = tmp_path / "sentences.txt"
    path.write_text("".join(" ".join(s) + "\n" for s in MANY), encoding="utf-8")
    return path


def read(path):
    with h5py.File(path) as file:
        return {name: file[name][()] for name in file}


def lines(text):
    return text.read_text(encoding="utf-8").split("\n")[:-1]
