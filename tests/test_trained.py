"""Models that the original programs trained on text give the results of these programs."""

import json
import pathlib

import numpy as np
import pytest

from keras_elmo import CharacterTokenizer, ElmoLayer
from keras_elmo.pretraining.language_model_files import read_language_model
from keras_elmo.pretraining.scores import Scorer
from tests.conftest import load_arrays, numpy

TRAINED = pathlib.Path(__file__).parent / "trained"


@pytest.mark.parametrize(
    "name, path, has_softmax",
    [
        ("bilm_tf", "model", True),
        ("simple_elmo", "model", False),  # the hdf5 file
        ("simple_elmo", "model/model.ckpt-1071", True),
        ("many_langs", "model", False),  # its softmax is not read
    ],
)
def test_results_of_the_trainer(name, path, has_softmax):
    model = TRAINED / name / path
    reference = json.loads((TRAINED / name / "reference.json").read_text("utf-8"))
    sentences = reference["sentences"]
    vectors = load_arrays(TRAINED / name / "vectors.npz")
    found = numpy(ElmoLayer.from_preset(model)(CharacterTokenizer.from_preset(model)(sentences)))
    for i, sentence in enumerate(sentences):
        expected = np.moveaxis(vectors[str(i)], 0, 1)
        assert np.abs(found[i, : len(sentence)] - expected).max() < 5e-6
    if not has_softmax:
        return
    scorer = Scorer(*read_language_model(model))
    for sentence, expected in zip(sentences, reference["perplexities"]):
        found = scorer.perplexity([sentence])["perplexity"]
        assert found == pytest.approx(expected, rel=5e-6)
