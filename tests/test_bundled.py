"""The biLMs that come with the package: whole, small, and they know something."""

import hashlib
import importlib.util
import pathlib
import re

import numpy as np
import pytest

import keras_elmo
from keras_elmo.presets import bundled
from keras_elmo.pretraining.language_model_files import read_language_model
from keras_elmo.pretraining.scores import Scorer
from tests.conftest import only_tensorflow

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("name", bundled())
def test_files(name):
    folder = bundled()[name]
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    expected = {"options.json", "weights.hdf5", "vocab.txt", "softmax.hdf5", "README.md"}
    largest = {"elmo_small_en": 45e6, "elmo_mini_en": 20e6, "elmo_mini_ko": 25e6}[name]
    assert expected <= set(sizes) and sum(sizes.values()) <= largest
    sums = re.findall(r"^([0-9a-f]{64})  (\S+)$", (folder / "README.md").read_text(), re.M)
    assert {file for _, file in sums} == expected - {"README.md"}
    for digest, file in sums:
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == digest, file


# In the order of the example's own text: sport and games, theatre, music; money, river; verb,
# animal; ship, fruit, belly; praise, irony.
SENSES = {
    "en": {"play": [6, 6, 3], "bank": [4, 4], "bear": [3, 3]},
    "ko": {"배": [6, 6, 6], "잘 하 ㄴ다": [6, 6]},
}


@pytest.mark.parametrize(
    "preset, layer, least",
    [("elmo_small_en", 1, 0.7), ("elmo_mini_en", 1, 0.7), ("elmo_mini_ko", 2, 0.5)],
)
def test_it_tells_senses_apart_where_the_token_representation_can_not(preset, layer, least):
    language = preset[-2:]
    spec = importlib.util.spec_from_file_location("words", EXAMPLES / "words_in_context.py")
    words = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(words)
    text = (EXAMPLES / f"words_in_context_{language}.txt").read_text("utf-8")
    sentences = [line.split() for line in text.splitlines()]
    embedder = keras_elmo.Embedder(preset)
    right, total = 0, 0
    for word, counts in SENSES[language].items():
        places = words.find_places(sentences, word)
        layers = embedder.embed([sentence for sentence, _ in places])
        found = [x[:, place].mean(axis=1) for x, (_, place) in zip(layers, places, strict=True)]
        vectors = np.stack(found)
        labels = np.repeat(np.arange(len(counts)), counts)
        assert len(labels) == len(vectors)
        np.testing.assert_allclose(vectors[:, 0], vectors[:1, 0].repeat(len(labels), 0), atol=1e-5)
        for i, vector in enumerate(vectors[:, layer]):
            [other], _ = words.nearest(vectors[:, layer], vector, i, 1)
            right += labels[other] == labels[i]
        total += len(labels)
    assert right / total > least  # 0.4 by chance


TEXT = {
    "en": [
        "The children play in the garden until it is dark .",
        "He was born in London and educated at Oxford .",
    ],
    "ko": [
        "그 는 서울 에서 태어나 어 대학교 를 졸업 하 었 다 .",
        "배우 들 의 연기 가 정말 좋 았 고 너무 재미있 게 보 았 습니다 .",
    ],
}


@only_tensorflow
@pytest.mark.parametrize("preset", bundled())
def test_it_predicts_its_language(preset):
    scorer = Scorer(*read_language_model(preset))
    sentences = [text.split() for text in TEXT[preset[-2:]]]
    ahead = scorer.perplexity(sentences)["perplexity"]
    shuffled = [sorted(sentence) for sentence in sentences]
    assert ahead < 100 < scorer.perplexity(shuffled)["perplexity"] / 3
