"""Benchmarks that no other test would notice to be broken, on a small corpus; not their figures."""

import json
import pathlib

import pytest

from tests.conftest import slow
from tests.example_runs import run

BENCHMARKS = pathlib.Path(__file__).parents[1] / "benchmarks"


@slow
@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_a_step_of_pretraining_beside_its_products(tmp_path, optimizer):
    sentences = ["Dogs bark .", "Cats do n't bark .", "Dogs and cats sleep ."] * 20
    (tmp_path / "train-00000-of-00001.txt").write_text("\n".join(sentences) + "\n")
    words = sorted({word for sentence in sentences for word in sentence.split()})
    (tmp_path / "vocab.txt").write_text("\n".join(["<S>", "</S>", "<UNK>", *words]) + "\n")
    given = "--steps", 2, "--batch-tokens", 60, "--negatives", 4, "--optimizer", optimizer
    facts = json.loads(run(BENCHMARKS / "pretraining.py", tmp_path, *given))
    assert (facts["size"], facts["optimizer"]) == ("mini", optimizer)
    # Tokens of a step: of its 60 places some are padding, and one a sentence is a boundary.
    assert 20 < facts["tokens_per_s"] * facts["step_s"] <= 60
    assert facts["share_of_float32_limit"] > 0
