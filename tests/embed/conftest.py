"""Sentences, a tiny Embedder and files for all tests of this folder."""

import random

import h5py
import numpy as np
import pytest

from keras_elmo import Embedder
from keras_elmo.embed import embed_file
from tests.conftest import SENTENCES

RANDOM = random.Random(0)
MANY = SENTENCES + [
    ["".join(RANDOM.choices("abcdefgé", k=RANDOM.randint(0, 12))) for _ in range(length)]
    for length in [7, 1, 30, 2, 2, 11]
]
# As ``MANY``, without the empty tokens, which a line cannot contain.
STORED = [[token for token in sentence if token] for sentence in MANY]


@pytest.fixture(autouse=True)
def keras_engine(monkeypatch):
    """Compute with Keras on every CPU, unless a test names the other engine."""
    monkeypatch.setattr("keras_elmo.embed.embedder.choose_engine", lambda *a: ("keras", ""))


@pytest.fixture(scope="module")
def embedder(tiny_preset):
    return Embedder(tiny_preset, engine="keras")


@pytest.fixture
def text(tmp_path, monkeypatch):
    """A file of ``STORED``, which is embedded in parts of three sentences."""
    monkeypatch.setattr(embed_file, "SENTENCES_IN_A_PART", 3)
    path = tmp_path / "sentences.txt"
    path.write_text("".join(" ".join(s) + "\n" for s in STORED), encoding="utf-8")
    return path


@pytest.fixture
def layers(embedder, text, tmp_path):
    """A file of the layers of ``STORED``."""
    embedder.embed_file(text, tmp_path / "layers.hdf5", progress=False)
    return tmp_path / "layers.hdf5"


def assert_close(found, expected, atol=0.0):
    """Compare two lists of arrays; exactly, unless a tolerance is given."""
    for array, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(array, other, rtol=0, atol=atol)


def read(path):
    with h5py.File(path) as file:
        return {name: file[name][()] for name in file}
