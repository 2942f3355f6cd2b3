"""Parity with the outputs that bilm-tf and AllenNLP recorded for their own tiny models."""

import json

import h5py
import numpy as np
import pytest

from keras_elmo import ElmoLayer
from tests.conftest import SHARED, numpy, tokenize

FIXTURES = SHARED / "fixtures"
FILES = {"bilm-tf": "lm_embeddings_sentences.json", "allennlp": "sentences.json"}

pytestmark = [
    pytest.mark.backends("torch"),
    pytest.mark.skipif(not FIXTURES.is_dir(), reason="the peers' fixtures are not here"),
]


@pytest.mark.parametrize("peer", FILES)
def test_recorded_top_layers(peer):
    """State is carried over ten batches; batch i holds sentence i of each of three lists."""
    folder = FIXTURES / peer
    lists = json.loads((folder / FILES[peer]).read_text())
    layer = ElmoLayer.from_hdf5(
        folder / "options.json", folder / "lm_weights.hdf5", output="top", stateful=True
    )
    recorded = [h5py.File(folder / f"lm_embeddings_{k}.hdf5") for k in range(3)]
    for i in range(10):
        batch = [sentences[i].split() for sentences in lists]
        found = numpy(layer(tokenize(batch)))
        for k, sentence in enumerate(batch):
            expected = np.concatenate(recorded[k][str(i)][()], axis=-1)
            assert np.abs(found[k, : len(sentence)] - expected).max() < 5e-6
