"""The biLMs that come with the package: whole, small, and they know something."""

import hashlib
import re

import numpy as np
import pytest

from keras_elmo.presets import bundled
from tests.example_runs import EXAMPLES, run


@pytest.mark.parametrize("name", bundled())
def test_files(name):
    folder = bundled()[name]
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    expected = {"options.json", "weights.hdf5", "vocab.txt", "softmax.hdf5", "README.md"}
    largest = {"elmo_small_en": 45e6, "elmo_mini_en": 20e6, "elmo_small_ko": 45e6}[name]
    assert expected <= set(sizes) and sum(sizes.values()) <= largest
    sums = re.findall(r"^([0-9a-f]{64})  (\S+)$", (folder / "README.md").read_text(), re.M)
    assert {file for _, file in sums} == expected - {"README.md"}
    for digest, file in sums:
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == digest, file


@pytest.mark.parametrize(
    "preset, layer, tokens, least",
    [("elmo_small_en", 1, 29, 0.7), ("elmo_mini_en", 1, 29, 0.7), ("elmo_small_ko", 2, 30, 0.7)],
)
@pytest.mark.extended
def test_it_tells_senses_apart_where_the_token_representation_can_not(preset, layer, tokens, least):
    given = "--language", preset[-2:], "--preset", preset, "--layer", layer
    out = run(EXAMPLES / "words_in_context.py", *given)
    counts = re.findall(r"(\d+) tokens, equal in layer 0", out)
    found = re.findall(r"same paragraph: (\d+) of (\d+)", out)
    assert counts == [total for _, total in found]
    right, total = np.array(found, int).sum(axis=0)
    assert total == tokens and right / total > least  # 0.4 by chance
    if preset == "elmo_small_ko":
        card = (bundled()[preset] / "README.md").read_text("utf-8")
        assert f"{right} of the {total} tokens" in card
