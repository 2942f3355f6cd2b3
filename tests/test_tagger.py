"""The tagger of examples/ner.py: trained, saved without its biLM, loaded, and bundled."""

import pathlib
import re
import shlex

import pytest

from tests.example_runs import EXAMPLES, TOKENS, run, write_columns

pytest.importorskip("nltk")
pytest.importorskip("seqeval")
pytestmark = pytest.mark.extended
ROOT = EXAMPLES.parent
README = (ROOT / "README.md").read_text("utf-8")
GUIDE = (ROOT / "docs/guide/tag.md").read_text("utf-8")
COMMAND = re.compile(r"^(python examples/ner\.py [^\n]*\n)(?:```\n\n```\n(.*?)```)?", re.M | re.S)


@pytest.mark.parametrize("options", [["--cache"], ["--no-elmo"]])
def test_a_saved_tagger_tags_again(tmp_path, preset, options):
    file = write_columns(tmp_path / "all.conll", "IOB1")
    given = ["--train", file, "--dev", file, "--test", file, "--save", tmp_path / "saved"]
    given += ["--preset", preset, "--epochs", 60, "--learning-rate", 0.01]
    given += [*options, tmp_path / "layers"] if options == ["--cache"] else options
    texts = ["--tokenizer", "whitespace", "--tag", *TOKENS.split(" | ")]
    found = "Ada Lovelace PER\nLondon LOC\nParis LOC\nEU's ORG\nSmith PER\n"
    assert run(EXAMPLES / "ner.py", *given, *texts).endswith("test 100.0\n" + found)
    assert len((tmp_path / "saved/tagger.keras").read_bytes()) < 20e6
    loaded = run(EXAMPLES / "ner.py", "--load", tmp_path / "saved", "--test", file, *texts)
    assert loaded == "test F1 1.0000\n" + found


@pytest.mark.parametrize("page", [README, GUIDE], ids=["README", "guide"])
def test_the_bundled_tagger_prints_what_a_page_shows(page, monkeypatch):
    command, output = next(x for x in COMMAND.findall(page) if "--load weights/" in x[0])
    monkeypatch.chdir(ROOT)
    assert run(EXAMPLES / "ner.py", *shlex.split(command)[2:]) == output


def test_the_guide_trains_a_tagger(tmp_path, preset, monkeypatch, eager):
    commands = [
        x for x, _ in COMMAND.findall(GUIDE) if "--save tagger" in x or "--load tagger" in x
    ]
    assert len(commands) == 2
    monkeypatch.chdir(tmp_path)
    write_columns(pathlib.Path("train.conll"), "IOB2")
    for command in commands:
        run(EXAMPLES / "ner.py", *shlex.split(command)[2:], "--preset", preset, "--epochs", "1")
    assert {x.name for x in pathlib.Path("tagger").iterdir()} == {"tagger.keras", "known.json"}
