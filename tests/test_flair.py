"""The class for flair on the page "Coming from another library"."""

import pathlib
import re

import numpy as np
import pytest

import keras_elmo

pytest.importorskip("flair")

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "coming_from.md"


@pytest.mark.extended
@pytest.mark.filterwarnings("ignore")
def test_the_class_for_flair():
    from flair.data import Sentence
    from flair.embeddings import StackedEmbeddings
    from flair.embeddings.base import load_embeddings

    [code] = re.findall(r'title="elmo_flair.py"\n(.*?)^```', PAGE.read_text(), re.M | re.S)
    names = {}
    exec(code, names)  # noqa: S102
    elmo = names["KerasElmoEmbeddings"]("elmo_mini_en")
    sentences = [Sentence("The grass is green ."), Sentence("Dogs bark")]
    StackedEmbeddings([elmo]).embed(sentences)
    tokens = [[token.text for token in sentence] for sentence in sentences]
    expected = keras_elmo.Embedder("elmo_mini_en").embed(tokens, layers="average")
    for sentence, array in zip(sentences, expected):
        found = np.stack([token.get_embedding().cpu().numpy() for token in sentence])
        np.testing.assert_allclose(found, array, atol=1e-5)
    copy = load_embeddings(elmo.save_embeddings(use_state_dict=False))
    assert copy.params == elmo.params and copy.embedding_length == 256
