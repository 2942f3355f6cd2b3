"""Models that the original programs trained on text give the results of these programs."""

import json
import pathlib
import shutil

import h5py
import numpy as np
import pytest

from keras_elmo import CharacterTokenizer, ElmoLayer
from keras_elmo.pretraining.language_model_files import read_language_model
from keras_elmo.pretraining.scores import Scorer
from tests.conftest import numpy

TRAINED = pathlib.Path(__file__).parent / "trained"


@pytest.mark.parametrize(
    "name, path",
    [
        ("bilm_tf", "model"),
        ("simple_elmo", "model"),
        ("simple_elmo", "model/model.ckpt-1071"),
        ("many_langs", "model"),
    ],
)
def test_results_of_the_trainer(name, path):
    if name == "many_langs":
        pytest.importorskip("torch")
    model = TRAINED / name / path
    reference = json.loads((TRAINED / name / "reference.json").read_text("utf-8"))
    sentences, vectors = reference["sentences"], np.load(TRAINED / name / "vectors.npz")
    found = numpy(ElmoLayer.from_preset(model)(CharacterTokenizer.from_preset(model)(sentences)))
    for i, sentence in enumerate(sentences):
        expected = np.moveaxis(vectors[str(i)], 0, 1)
        assert np.abs(found[i, : len(sentence)] - expected).max() < 5e-6
    if name == "many_langs":  # its softmax is not read
        return
    scorer = Scorer(*read_language_model(model))
    for sentence, expected in zip(sentences, reference["perplexities"]):
        found = scorer.perplexity([sentence])["perplexity"]
        assert found == pytest.approx(expected, rel=5e-6)


def test_softmax_of_another_step(tmp_path):
    model = shutil.copytree(TRAINED / "simple_elmo" / "model", tmp_path / "model")
    with h5py.File(model / "model.hdf5", "r+") as file:
        file["char_embed"][0, 0] += 1
    with pytest.raises(ValueError, match="must contain the same biLM. Received: two steps of"):
        read_language_model(model)
