"""Models of other programs give the results of these programs."""

import json

import numpy as np
import pytest

from keras_elmo import CharacterTokenizer, ElmoLayer, Embedder, ScalarMix
from keras_elmo.presets import convert, open_preset
from keras_elmo.pretraining.language_model_files import read_language_model
from keras_elmo.pretraining.scores import Scorer
from tests.conftest import SHARED, load_arrays, numpy

FIXTURES = SHARED / "fixtures" / "foreign"
TOLERANCE = 1e-5

pytestmark = pytest.mark.skipif(not FIXTURES.is_dir(), reason="the peers' fixtures are not here")

# Folder, model, reference and options.
MODELS = {
    "checkpoint": ("bilm_tf_checkpoint", "model", "reference/layers", None),
    "prefix": ("bilm_tf_checkpoint", "model/model.ckpt-400", "reference/layers", None),
    "dumped": ("bilm_tf_checkpoint", "dumped", "reference/layers", None),
    "nlpl": ("nlpl_zip", "model.zip", "reference/layers", None),
    "hub": ("tf_hub_module", "module", "reference/reference", "options_of_the_reference.json"),
    "allennlp": ("allennlp_archive", "model.tar.gz", "reference/reference", "../options.json"),
    "word_char": ("efml", "word_char", "reference/word_char", None),
    "char_only": ("efml", "char_only", "reference/char_only", None),
}


def open_model(name):
    """Return the path of a model, its options, sentences and reference."""
    folder, source, reference, options = MODELS[name]
    reference = FIXTURES / folder / reference
    sentences = reference.with_name(f"{reference.name}.sentences.json")
    if not sentences.exists():
        sentences = reference.with_name("sentences.json")
    arrays = load_arrays(reference.with_name(f"{reference.name}.npz"))
    options = options and reference.parent / options
    return FIXTURES / folder / source, options, json.loads(sentences.read_text("utf-8")), arrays


@pytest.mark.parametrize("name", MODELS)
def test_layers(name, tmp_path):
    source, options, sentences, reference = open_model(name)
    layer = ElmoLayer.from_preset(source, options=options)
    tokenizer = CharacterTokenizer.from_preset(source, options)
    found = numpy(layer(tokenizer(sentences)))
    for i, sentence in enumerate(sentences):
        expected = np.moveaxis(reference[f"layers_{i}"], 0, 1)
        assert np.abs(found[i, : len(sentence)] - expected).max() < TOLERANCE
    convert(source, tmp_path / "preset", options)
    again = open_preset(tmp_path / "preset").read()
    assert again.fingerprint() == layer.fingerprint() and again.config == layer.config
    if name in ("checkpoint", "word_char"):
        for i, array in enumerate(Embedder(tmp_path / "preset").embed(sentences)):
            assert np.abs(array - reference[f"layers_{i}"]).max() < TOLERANCE


@pytest.mark.parametrize("name, key", [("hub", "elmo_{}"), ("allennlp", "mix_0_{}")])
def test_mixes(name, key):
    source, _, sentences, reference = open_model(name)
    mix = ScalarMix.from_preset(source)
    for i in range(len(sentences)):
        layers = np.moveaxis(reference[f"layers_{i}"], 0, 1)[None]
        assert np.abs(numpy(mix(layers))[0] - reference[key.format(i)]).max() < TOLERANCE


def test_language_model():
    scorer = Scorer(*read_language_model(FIXTURES / "bilm_tf_checkpoint" / "model"))
    folder = FIXTURES / "bilm_tf_checkpoint" / "reference"
    sentences = [line.split() for line in (folder / "test.txt").read_text("utf-8").splitlines()]
    found = scorer.perplexity(sentences)["perplexity"]
    assert found == pytest.approx(8.352309, abs=1e-5)
    reference = load_arrays(folder / "token_logprobs.npz")
    for i, (forward, backward) in enumerate(scorer.log_probabilities(sentences)):
        assert np.abs(forward - reference[f"forward_{i}"]).max() < TOLERANCE
        assert np.abs(backward - reference[f"backward_{i}"]).max() < TOLERANCE
