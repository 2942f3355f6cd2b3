"""A corpus small enough to train on in a test."""

import numpy as np
import pytest

from keras_elmo.pretraining.prepare import prepare
from tests.conftest import make_config


def write_corpus(folder, seed=0, sentences=1200):
    """Sentences of a language in which every word tells the next, prepared."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(sentences):
        word = rng.integers(0, 12)
        length = rng.integers(2, 9)
        words = [(word + 5 * k) % 12 for k in range(length)]
        lines.append(" ".join("abcdefghijkl"[w] * (1 + w % 3) for w in words))
    raw = folder / f"raw{seed}.txt"
    raw.write_text("\n".join(lines))
    prepare(
        raw,
        folder / f"corpus{seed}",
        sentences="lines",
        tokenizer="whitespace",
        shards=2,
        heldout_share=0.5,
        progress=False,
    )
    return folder / f"corpus{seed}"


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def config():
    return make_config()
