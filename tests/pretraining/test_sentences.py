"""Text files to tokenised ones."""

import gzip
import io
import json
import os
import threading
import types

import pytest

from keras_elmo.cli import main
from keras_elmo.pretraining.prepare import prepare
from keras_elmo.pretraining.sentences import SentenceRules, tokenize_file
from keras_elmo.pretraining.text_files import read_sentences

KOREAN = "배가 고프다! 배를 먹었다.\n\n“잘한다” 잘해!\r\n" * 40


@pytest.fixture
def raw(tmp_path):
    (tmp_path / "raw.txt").write_bytes(b"\xef\xbb\xbf" + KOREAN.encode())
    return tmp_path / "raw.txt"


def test_a_line_that_takes_nltk_too_long(monkeypatch):
    def time_out(line):
        raise TimeoutError("regular-expression match exceeded its 5.0s time limit")

    rules = SentenceRules("lines", "whitespace", [])
    monkeypatch.setattr(rules, "_split", time_out)
    with pytest.raises(ValueError, match="in its time limit. Received: a line of 3 characters, 'a"):
        rules(["a b"])


def test_a_line_for_every_line(raw, tmp_path):
    (tmp_path / "raw.txt.gz").write_bytes(gzip.compress("a “b”\n\n c\u00a0d ".encode()))
    counts = tokenize_file(
        tmp_path / "raw.txt.gz", tmp_path / "out", tokenizer="whitespace", progress=False
    )
    assert (tmp_path / "out").read_text("utf-8") == "a “b”\n\nc\u00a0d\n"
    assert counts == {"lines": 3, "sentences": 3, "tokens": 3}
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "raw.txt.gz").stat().st_mode


def test_a_bad_output_is_not_put_down_to_the_input(raw, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="^Expected a file to write. Received: .*folder, which is so"):
        tokenize_file(raw, tmp_path / "folder", tokenizer="whitespace", progress=False)


def test_tokens_stay_as_they_are():
    line = "\u3000Er sagte ‚ hallo ‘ .\n"
    assert SentenceRules("lines", "whitespace", [])([line, " \n"]) == [line.strip("\n")]
    assert SentenceRules("lines", "penn", [])([line]) == ["Er sagte ' hallo ' ."]
    # What is written stands at the end of a line again, and reads back as the same tokens.
    for end in ("\r\n", "\r\r\n", "\r"):
        assert SentenceRules("lines", "whitespace", [])(["a b" + end]) == ["a b"]


def test_stops():
    """Without capitals Punkt takes the last word of many a sentence for an abbreviation."""
    line = '배가 고프다.  "먹자!" J. R. R. 톨킨은 2020. 1. 3. 밤(3.5%)에 왔다... 왜?? 아'
    rules = SentenceRules("stops", "whitespace", [])
    sentences = [
        "배가 고프다.",
        '"먹자!"',
        "J. R. R. 톨킨은 2020. 1. 3. 밤(3.5%)에 왔다...",
        "왜??",
        "아",
    ]
    assert rules([line + "\r\n", " \n"]) == sentences
    assert rules(["끝났다.\n"]) == ["끝났다."]


@pytest.mark.parametrize("sentences", ["lines", "punkt"])
def test_the_tokens_of_prepare(raw, tmp_path, sentences):
    for name in ("kiwipiepy", "nltk"):
        pytest.importorskip(name)
    out = tmp_path / "out.txt"
    given = {"sentences": sentences, "tokenizer": "kiwi", "progress": False}
    counts = tokenize_file(raw, out, **given)
    lines = out.read_text("utf-8").splitlines()
    if sentences == "lines":
        assert lines[:3] == ["배 가 고프 다 ! 배 를 먹 었 다 .", "", '" 잘 하 ㄴ다 " 잘 하 어 !']
    else:
        assert lines[:3] == ["배 가 고프 다 !", "배 를 먹 었 다 .", '" 잘 하 ㄴ다 " 잘 하 어 !']
    assert counts["lines"] == 120 and counts["sentences"] == len(lines) == 120
    whole = {"heldout_share": 0, "shards": 1}
    workers = 2 if sentences == "lines" else 1
    prepared = prepare(raw, tmp_path / "corpus", **given, **whole, workers=workers)
    [shard] = (tmp_path / "corpus").glob("train-*")
    assert shard.read_text("utf-8").splitlines() == [line for line in lines if line]
    assert prepared["tokens"] == counts["tokens"]
    # So a corpus may be made of tokenised text too.
    plain = {"sentences": "lines", "tokenizer": "whitespace", "progress": False}
    prepare(out, tmp_path / "again", **plain, **whole)
    assert [f.read_bytes() for f in (tmp_path / "again").glob("*.txt")] == [
        f.read_bytes() for f in (tmp_path / "corpus").glob("*.txt")
    ]


def test_the_home_folder_and_pipes(raw, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    before = raw.read_bytes()
    for _ in range(2):
        tokenize_file("~/raw.txt", tmp_path / "out.txt", tokenizer="whitespace", progress=False)
    for one, two in ((raw, "~/raw.txt"), ("~/raw.txt", raw)):
        with pytest.raises(ValueError, match="other than the input file. Received: .*raw.txt as b"):
            tokenize_file(one, two, tokenizer="whitespace", progress=False)
    assert raw.read_bytes() == before
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="Punkt reads it twice. Received: .*'punkt' with .*/pipe."):
        tokenize_file(tmp_path / "pipe", tmp_path / "no.txt", sentences="punkt")
    write = (tmp_path / "pipe").write_bytes
    writer = threading.Thread(target=write, args=(before,), daemon=True)
    writer.start()
    tokenize_file(tmp_path / "pipe", tmp_path / "piped.txt", tokenizer="whitespace")
    writer.join()
    assert (tmp_path / "piped.txt").read_bytes() == (tmp_path / "out.txt").read_bytes()


def test_the_command(raw, tmp_path, capsys, monkeypatch):
    given = ["--tokenizer", "whitespace", "--quiet"]
    assert main(["tokenize", str(raw), str(tmp_path / "out"), "--json", *given]) == 0
    assert json.loads(capsys.readouterr().out)["lines"] == 120
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=io.BytesIO(b" a  b\n\nc")))
    assert main(["tokenize", "-", "-", *given]) == 0
    assert capsys.readouterr().out == "a b\n\nc\n"
    assert main(["tokenize", "-", "-", *given, "--sentences", "punkt"]) == 1
    assert "Punkt reads it twice. Received: sentences='punkt' with stdin" in capsys.readouterr().err


def test_nothing_is_written_of_a_text_that_cannot_be_read(raw, tmp_path):
    plain = {"tokenizer": "whitespace", "progress": False}
    (tmp_path / "broken.gz").write_bytes(gzip.compress(KOREAN.encode() * 999)[:-9])
    with pytest.raises(OSError, match="broken.gz is damaged"):
        tokenize_file(tmp_path / "broken.gz", tmp_path / "out", **plain)
    for ending in ("gz", "bz2", "xz"):
        (tmp_path / f"none.{ending}").write_bytes(b"hello\n")
        with pytest.raises(OSError, match=rf"none.{ending} is damaged: \w+"):
            tokenize_file(tmp_path / f"none.{ending}", tmp_path / "out", **plain)
        (tmp_path / f"none.{ending}").unlink()
    with pytest.raises(FileNotFoundError, match="absent.gz"):
        tokenize_file(tmp_path / "absent.gz", tmp_path / "out", **plain)
    (tmp_path / "latin.txt").write_bytes(b"a\ncaf\xe9\n")
    with pytest.raises(ValueError, match="Expected UTF-8 text, .* Received: .*latin.txt"):
        tokenize_file(tmp_path / "latin.txt", tmp_path / "out", **plain)
    with pytest.raises(
        ValueError, match="Expected an output file other than the input file. Received: .*raw.txt"
    ):
        tokenize_file(raw, raw, **plain)
    with pytest.raises(ValueError, match="to be one of punkt, stops, lines. .*sentences='x'"):
        tokenize_file(raw, tmp_path / "out", sentences="x", **plain)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["broken.gz", "latin.txt", "raw.txt"]


def test_a_carriage_return_inside_ends_no_line(tmp_path):
    (tmp_path / "t.txt").write_bytes(b"a\rb c\r\nd\n")
    assert read_sentences(tmp_path / "t.txt") == [["a\rb", "c"], ["d"]]
