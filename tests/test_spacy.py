"""The spaCy component, found by the entry point of keras-elmo."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

spacy = pytest.importorskip("spacy")

import keras_elmo

TEXT = "Dogs bark.  They ran!"
SENTENCES = [["Dogs", "bark", "."], ["They", "ran", "!"]]
ROWS = [0, 1, 2, 4, 5, 6]  # token 3 is a space


def make_nlp(preset, **config):
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("elmo", config={"preset": str(preset), **config})
    return nlp


@pytest.mark.parametrize("layers", ["average", "all", 0, -1, [0.2, 0.5, 0.3]])
def test_the_tensor_has_the_vectors_of_each_sentence(preset, layers):
    doc = make_nlp(preset, layers=layers)(TEXT)
    arrays = keras_elmo.Embedder(preset).embed(SENTENCES, layers=layers)
    if layers == "all":
        arrays = [np.concatenate(list(array), axis=-1) for array in arrays]
    np.testing.assert_allclose(doc.tensor[ROWS], np.concatenate(arrays), atol=1e-5)
    assert not doc.tensor[3].any()


def test_hooks_give_vectors_and_similarities_beside_a_vector_table(preset):
    nlp = make_nlp(preset)
    nlp.vocab.set_vector("Dogs", np.ones(5, "float32"))
    doc = nlp(TEXT)
    np.testing.assert_array_equal(doc[0].vector, doc.tensor[0])
    np.testing.assert_allclose(doc[2:5].vector, doc.tensor[[2, 4]].mean(0), atol=1e-6)
    np.testing.assert_allclose(doc.vector, doc.tensor[ROWS].mean(0), atol=1e-6)
    assert doc.has_vector and doc[1].has_vector and doc[:2].has_vector
    a, b = doc.tensor[0], doc.tensor[5]
    cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert doc[0].similarity(doc[5]) == pytest.approx(cosine, abs=1e-6)
    assert doc.similarity(doc) == pytest.approx(1, abs=1e-6)
    assert doc[:3].similarity(nlp("")) == 0
    copy = pickle.loads(pickle.dumps(doc))
    np.testing.assert_array_equal(copy[0].vector, doc.tensor[0])


def test_pipe_gives_what_single_calls_give(preset):
    nlp = make_nlp(preset)
    texts = [TEXT, "", "One.", "  "]
    for doc, text in zip(nlp.pipe(texts, batch_size=3), texts, strict=True):
        np.testing.assert_allclose(doc.tensor, nlp(text).tensor, atol=1e-5)
        assert doc.text == text and len(doc.tensor) == len(doc)


def test_a_document_without_sentences_is_one(preset):
    nlp = spacy.blank("en")
    nlp.add_pipe("elmo", config={"preset": str(preset)})
    [expected] = keras_elmo.Embedder(preset).embed([sum(SENTENCES, [])], layers="average")
    np.testing.assert_allclose(nlp(TEXT).tensor[ROWS], expected, atol=1e-5)


LOAD = """
import sys
import numpy as np, spacy

for name in ("named", "moved"):
    doc = spacy.load(f"{sys.argv[1]}/{name}")(sys.argv[2])
    expected = np.load(f"{sys.argv[1]}/{name}.npy")
    np.testing.assert_allclose(doc[0].vector, expected[0], atol=1e-5)
"""


@pytest.mark.extended
def test_saved_pipelines_load_in_a_new_process(preset, tmp_path):
    """A folder with the biLM contains it, and a name is only named."""
    for name, source in (("named", "elmo_mini_en"), ("moved", preset)):
        nlp = make_nlp(source, layers="top")
        np.save(tmp_path / f"{name}.npy", nlp(TEXT).tensor)
        nlp.to_disk(tmp_path / "saved")
        assert (tmp_path / "saved" / "elmo").exists() == (name == "moved")
        (tmp_path / "saved").rename(tmp_path / name)
    preset.rename(tmp_path / "elsewhere")
    # The package need not be installed for the tests: an entry point is a line of its metadata.
    subprocess.run([sys.executable, "-c", LOAD, str(tmp_path), TEXT], check=True)
