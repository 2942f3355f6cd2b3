"""An exported run: the model card, the log and the files of a preset."""

import json
import re

import pytest

import keras_elmo
from keras_elmo.pretraining import Scorer, export_run, read_language_model
from keras_elmo.text_input import read_sentences


def test_a_run_becomes_a_preset(a_run, corpus, tmp_path):
    [heldout] = corpus.glob("heldout-*")
    settings = {"data": "Made up.", "license": "cc0-1.0", "language": "en"}
    scores = export_run(a_run, tmp_path / "preset", heldout, **settings)
    model, vocabulary = read_language_model(tmp_path / "preset")
    found = Scorer(model, vocabulary).perplexity(read_sentences(heldout))
    assert scores == {heldout.name: pytest.approx(found, rel=1e-6)}
    card = (tmp_path / "preset" / "README.md").read_text("utf-8")
    front, title = re.fullmatch(r"---\n(.*?)\n---\n\n(# preset)\n.*", card, re.DOTALL).groups()
    assert title and dict(line.split(": ") for line in front.splitlines() if ": " in line) == {
        "library_name": "keras",
        "license": "cc0-1.0",
        "language": "en",
        "pipeline_tag": "feature-extraction",
    }
    assert front.endswith("tags:\n- elmo\n- keras-elmo")
    assert "Made up." in card and f"| {heldout.name} | " in card and "None" not in card
    recipe = json.loads(card.partition("```json\n")[2].partition("```")[0])
    assert recipe["steps"] == 8
    assert (tmp_path / "preset" / "log.csv").read_text() == (a_run / "log.csv").read_text()
    assert keras_elmo.ElmoLayer.from_preset(tmp_path / "preset")
    with pytest.raises(ValueError, match="export expects a directory that is new or empty"):
        export_run(a_run, tmp_path / "preset", **settings)
    with pytest.raises(ValueError, match="new or empty. Received: .*, which contains files"):
        export_run(a_run, a_run, overwrite=True, **settings)


def test_a_text_without_tokens(a_run, tmp_path):
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ValueError, match="Scorer expects text. Received: no token"):
        export_run(a_run, tmp_path / "preset", tmp_path / "empty.txt")
    assert not (tmp_path / "preset").exists()
