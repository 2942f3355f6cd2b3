"""Benchmarks that no other test would notice to be broken, on a small corpus; not their figures."""

import json
import pathlib
import runpy
import subprocess

import numpy as np
import pytest

from keras_elmo.cli import main
from tests.example_runs import run

pytestmark = pytest.mark.extended

BENCHMARKS = pathlib.Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def corpus(tmp_path):
    sentences = ["Dogs bark .", "Cats do n't bark .", "Dogs and cats sleep ."] * 20
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in ("train-00000-of-00001.txt", "heldout-animals.txt"):
        (folder / name).write_text("\n".join(sentences) + "\n")
    words = sorted({word for sentence in sentences for word in sentence.split()})
    (folder / "vocab.txt").write_text("\n".join(["<S>", "</S>", "<UNK>", *words]) + "\n")
    return folder


def test_a_step_of_pretraining_beside_its_products(corpus, eager):
    given = "--steps", 2, "--batch-tokens", 60, "--negatives", 4, "--optimizer", "muon"
    facts = json.loads(run(BENCHMARKS / "pretraining.py", corpus, *given))
    assert (facts["size"], facts["optimizer"]) == ("mini", "muon")
    # Tokens of a step: of its 60 places some are padding, and one a sentence is a boundary.
    assert 20 < facts["tokens_per_s"] * facts["step_s"] <= 60
    assert facts["share_of_float32_limit"] > 0


def test_pretraining_beside_another_trainer(corpus, monkeypatch):
    """Each process is replaced by the object that it prints last."""

    def process(command, **_):
        rate = 2.0 if "peer.py" in command else 3.0
        shares = {f"share_of_{dtype}_limit": 0.5 for dtype in ("float32", "bfloat16")}
        printed = "a line\n" + json.dumps({"tokens_per_s": rate, **shares})
        return subprocess.CompletedProcess(command, 0, printed)

    monkeypatch.setattr(subprocess, "run", process)
    given = "--rounds", 1, "--peer", "peer.py", "--impl", "torch"
    rows = run(BENCHMARKS / "pretraining.py", corpus, *given).splitlines()[2:]
    assert len(rows) == 8
    assert rows[:2] == [
        "| mini | adam, float32 | keras-elmo | 3 |  | 0.50 |",
        "| mini | adam, float32 | torch | 2 | 1.50 |  |",
    ]


def test_adam_and_muon_at_equal_tokens_and_time(corpus, tmp_path, monkeypatch, eager):
    monkeypatch.setattr(subprocess, "run", lambda command, **_: main(command[3:]))
    given = "--steps", 4, "--seeds", 1, "--batch-tokens", 60, "--negatives", 0, "--warmup", 1
    printed = run(BENCHMARKS / "optimizers.py", corpus, tmp_path / "runs", *given)
    facts = json.loads((tmp_path / "runs" / "optimizers.json").read_text())["runs"]
    adam, muon, as_long = (facts[x] for x in ("Adam", "Muon, equal tokens", "Muon, equal time"))
    assert adam["steps"] == muon["steps"] == [4] and adam["tokens"] == muon["tokens"]
    assert adam["perplexity"] != muon["perplexity"]
    assert as_long["steps"] == [round(4 * adam["seconds"][0] / muon["seconds"][0])]
    assert f"| Adam | 0.004 | 4 | {adam['tokens'][0] / 1e6:.2f} |" in printed


def test_curves_of_runs_one_after_the_other(tmp_path):
    log, empty = tmp_path / "log.csv", tmp_path / "empty.csv"
    log.write_text("step,tokens,perplexity\n10,2000,80.5\n20,4000,70\n30,6000,\n")
    empty.write_text("step,tokens,perplexity\n10,2000,\n")
    script, picture = BENCHMARKS / "curves.py", tmp_path / "curves.png"
    run(script, picture, f"one={log}", f"two={log}")
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match="log of a run with held-out text. Received: .*empty.csv"):
        run(script, tmp_path / "none.png", f"one={empty}")
    assert not (tmp_path / "none.png").exists()


def test_the_probe_and_the_scores_of_the_alternatives(monkeypatch):
    """The probe finds the layer with the labels; a name may have a chosen word."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    names = runpy.run_path(BENCHMARKS / "alternatives.py")
    x = np.random.default_rng(0).normal(size=(2, 600, 8)).astype("float32")
    labels = x[1, :, :3].argmax(axis=-1)
    dev = labels[400:]
    predict = names["train_probe"](
        x[:, :400], labels[:400], x[:, 400:], lambda found: (found == dev).mean(), 3
    )
    assert (predict(x[:, 400:]) == dev).mean() > 0.9
    labels = [["B-PER", "E-PER", "O"], ["S-LOC"]]
    found = ["B-PER", "E-PER", "O", "S-ORG"]
    assert names["score"]("names", found, labels) == 50
    assert names["score"]("names", found, labels, [[False, True, False], [False]]) == 100
    assert names["score"]("tags", found, labels) == 75
