"""Raw text to tokenised sentences and a vocabulary."""

import collections
import glob
import gzip
import json
import lzma
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keras_elmo.formats.vocabulary import read_vocabulary, write_vocabulary
from keras_elmo.prepare import prepare
from tests.conftest import room_for

PLAIN = {"sentences": "lines", "tokenizer": "whitespace", "progress": False}
TEXT = "Mr. Smith didn’t see “it”.  He (Mr. Brown) left at 5 p.m. on Monday. Why?\n"
OTHERS = "Mr. Jones and Mr. Gray met Mr. Hall at St. Paul. They ate.\n" * 40


def files_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def raw(tmp_path):
    (tmp_path / "raw").mkdir()
    for name, opener in (("a.txt", open), ("b.txt.gz", gzip.open), ("c.xz", lzma.open)):
        with opener(tmp_path / "raw" / name, "wt", encoding="utf-8") as file:
            file.write(TEXT + OTHERS + "\n\n" + TEXT)
    return tmp_path / "raw"


def test_sentences_and_tokens(raw, tmp_path):
    counts = prepare(raw / "a.txt", tmp_path / "out", heldout_share=0, shards=1, progress=False)
    lines = (tmp_path / "out" / "train-00000-of-00001.txt").read_text("utf-8").splitlines()
    assert lines[:3] == [
        'Mr. Smith did n\'t see " it " .',
        "He ( Mr. Brown ) left at 5 p.m. on Monday .",
        "Why ?",
    ]
    assert counts["sentences"] == len(lines) > 40
    assert counts["tokens"] == sum(len(line.split(" ")) for line in lines)
    assert counts["heldout_tokens"] == 0 and counts["oov_share"] is None


def test_every_sentence_goes_to_one_file_and_the_vocabulary_counts_the_training_part(raw, tmp_path):
    lines = [f"token{i % 7} word{i}" for i in range(5000)]
    (raw / "a.txt").write_text("\n".join(lines))
    settings = {"sentences": "lines", "tokenizer": "whitespace", "progress": False, "shards": 3}
    counts = prepare(
        raw / "a.txt", tmp_path / "out", heldout_share=0.3, vocabulary_size=20, seed=3, **settings
    )
    files = files_of(tmp_path / "out")
    assert list(files) == [
        "heldout-a.txt",
        "prepared.json",
        *(f"train-0000{i}-of-00003.txt" for i in range(3)),
        "vocab.txt",
    ]
    train = [line for n in files if "train" in n for line in files[n].decode().splitlines()]
    heldout = files["heldout-a.txt"].decode().splitlines()
    assert sorted(train + heldout) == sorted(lines)
    # Runs of 200 lines are held out together: seven or eight, for 1500 lines.
    numbers = [int(line.split("word")[1]) for line in heldout]
    blocks = collections.Counter(number // 200 for number in numbers)
    assert set(blocks.values()) == {200} and abs(len(heldout) - 1500) == 100
    seen = collections.Counter(token for line in train for token in line.split())
    vocabulary = read_vocabulary(tmp_path / "out" / "vocab.txt")
    assert vocabulary[:3] == ["<S>", "</S>", "<UNK>"] and len(vocabulary) == 20
    assert [seen[token] for token in vocabulary[3:]] == [n for _, n in seen.most_common(17)]
    unknown = sum(token not in vocabulary for line in heldout for token in line.split())
    assert counts["oov_share"] == unknown / counts["heldout_tokens"]
    facts = json.loads(files["prepared.json"])
    assert counts.items() <= facts.items() and facts["settings"]["seed"] == 3


@pytest.mark.extended
def test_the_same_bytes_whatever_the_number_of_processes(raw, tmp_path):
    for name, workers in (("one", 1), ("two", 2)):
        prepare(
            raw / "*", tmp_path / name, heldout_share=0.4, shards=2, workers=workers, progress=False
        )
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    assert any(name.startswith("heldout-") for name in files_of(tmp_path / "one"))


def test_a_line_that_readers_skip_is_no_token(raw, tmp_path):
    """A vocabulary that contains it would come back without it. Special tokens are unknown."""
    (raw / "a.txt").write_text("!!!MAXTERMID !!!MAXTERMID a\n" * 3 + "b <UNK> <S>\n" * 2, "utf-8")
    (raw / "dev.txt").write_text("a !!!MAXTERMID <UNK>\n", "utf-8")
    settings = {**PLAIN, "heldout_share": 0, "heldout": raw / "dev.txt"}
    counts = prepare(raw / "a.txt", tmp_path / "out", **settings)
    expected = ["<S>", "</S>", "<UNK>", "a", "b"]
    assert (tmp_path / "out" / "vocab.txt").read_text().split() == expected
    assert read_vocabulary(tmp_path / "out" / "vocab.txt") == expected
    assert (counts["types"], counts["oov_share"]) == (2, 2 / 3)


def test_nothing_is_left_of_a_failed_run(raw, tmp_path):
    (raw / "broken.gz").write_bytes(gzip.compress(TEXT.encode() * 9999)[:900])
    with pytest.raises(OSError, match="broken.gz is damaged: Compressed file ended"):
        prepare(raw / "broken.gz", tmp_path / "out", sentences="lines", progress=False)
    with room_for(500), pytest.raises(OSError, match="File too large"):
        prepare(raw / "a.txt", tmp_path / "out", sentences="lines", shards=1, progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw"]


def test_a_file_that_two_patterns_match_is_read_once(raw, tmp_path):
    plain = {"sentences": "lines", "tokenizer": "whitespace", "progress": False, "heldout_share": 0}
    (raw / "a.txt").write_text("\n".join(f"w{i}" for i in range(900)))
    (raw / "link.txt").symlink_to(raw / "a.txt")
    counts = prepare([raw / "a.txt", raw / "*.txt"], tmp_path / "out", **plain)
    assert counts["tokens"] == 900
    assert not list((tmp_path / "out").glob("heldout-*"))
    (raw / "a.txt").write_text("\nw1 w2 w3\n")  # the line that this seed holds out
    with pytest.raises(ValueError, match="Received: none in .*a.txt. All of it was held out, so"):
        prepare(raw / "a.txt", tmp_path / "none", **{**plain, "heldout_share": 0.5, "seed": 0})


@given(st.integers(1, 5000), st.floats(0.0005, 0.95), st.integers(0, 3))
@example(20, 0.9375, 0)  # 19 of 20 lines, in blocks of 4
@example(8, 0.95, 0)  # all 8 lines rounded, in blocks of 2
def test_the_share_that_is_held_out(tmp_path_factory, n_lines, share, seed):
    """Of any text, short or long, within a block; and never all of it, so none of a line."""
    folder = tmp_path_factory.mktemp("share")
    lines = [f"w{i}" for i in range(n_lines)]
    (folder / "a.txt").write_text("\n".join(lines) + "\n")
    wanted = max(1, round(n_lines * share))
    block = max(1, min(200, wanted // 4))
    wanted = min(wanted, n_lines - 1)
    settings = {"heldout_share": share, "seed": seed, "shards": 1, **PLAIN}
    if n_lines == 1:
        with pytest.warns(UserWarning, match="No text was held out"):
            assert prepare(folder / "a.txt", folder / "out", **settings)["tokens"] == 1
        return
    counts = prepare(folder / "a.txt", folder / "out", **settings)
    assert 1 <= counts["heldout_tokens"] < n_lines
    assert counts["heldout_tokens"] + counts["tokens"] == n_lines
    assert abs(counts["heldout_tokens"] - wanted) <= block
    assert (counts["heldout_tokens"] == wanted) or block > 1
    prepare(folder / "a.txt", folder / "again", **settings)
    assert files_of(folder / "out") == files_of(folder / "again")


def test_weights_of_sources(raw, tmp_path):
    for name, word in (("news", "n"), ("novels.v2", "o"), ("web", "w")):
        (raw / f"{name}.txt").write_text("".join(f"{word}{i} x\n" for i in range(1000)))
    inputs = [raw / "news.txt", raw / "novels.v2.txt", raw / "web.txt"]
    weights = {"news": 3, "novels.v2": np.float32(0.5)}
    settings = {
        **PLAIN,
        "heldout_share": 0.1,
        "weights": weights,
        "vocabulary_size": np.int64(9999),
    }
    counts = prepare(inputs, tmp_path / "out", **settings)
    files = files_of(tmp_path / "out")
    train = [line for n in files if "train" in n for line in files[n].decode().splitlines()]
    seen = collections.Counter(token for line in train for token in line.split())
    of_source = {w: [n for token, n in seen.items() if token[0] == w] for w in "now"}
    assert of_source["n"] == [3] * 900 and of_source["w"] == [1] * 900
    assert set(of_source["o"]) == {1} and 400 < len(of_source["o"]) < 500
    # Counts are those of what training reads; a copy is a line of its own, anywhere.
    assert counts["sentences"] == len(train) and counts["tokens"] == 2 * len(train)
    vocabulary = read_vocabulary(tmp_path / "out" / "vocab.txt")
    assert vocabulary[3] == "x" and {token[0] for token in vocabulary[4:904]} == {"n"}
    in_first = sum(token[0] == "n" for token in files["train-00000-of-00032.txt"].decode().split())
    assert 30 < in_first < 140
    # What is held out is not repeated.
    for name in ("news", "novels.v2", "web"):
        heldout = files[f"heldout-{name}.txt"].decode().splitlines()
        assert len(heldout) == len(set(heldout)) == 100 and not set(heldout) & set(train)
    facts = json.loads(files["prepared.json"])
    assert facts["settings"]["weights"] == {"news": 3, "novels.v2": 0.5}
    prepare(inputs, tmp_path / "again", **settings)
    assert files_of(tmp_path / "again") == files


def test_given_vocabulary_and_texts_to_hold_out(raw, tmp_path):
    (raw / "train.txt").write_text("a b c d\n" * 50)
    (raw / "dev.txt").write_text("a b z\n" * 3)
    (raw / "test.txt.gz").write_bytes(gzip.compress(b"c y\n" * 300))
    write_vocabulary(raw / "vocab", ["<S>", "</S>", "<UNK>", "z", "a", "q"])
    heldout = [raw / "dev.txt", raw / "test*"]
    settings = {**PLAIN, "heldout_share": 0, "heldout": heldout, "shards": 1}
    counts = prepare(raw / "train.txt", tmp_path / "out", **settings, vocabulary=raw / "vocab")
    files = files_of(tmp_path / "out")
    assert files["train-00000-of-00001.txt"].decode() == "a b c d\n" * 50
    assert files["heldout-dev.txt"].decode() == "a b z\n" * 3
    assert files["heldout-test.txt"].decode() == "c y\n" * 300
    assert files["vocab.txt"].decode().split() == ["<S>", "</S>", "<UNK>", "a", "z", "q"]
    assert not list((tmp_path / "out").glob("heldout-train*"))
    assert counts == {
        **{"tokens": 200, "sentences": 50, "types": 4, "vocabulary": 6},
        **{"heldout_tokens": 609, "oov_share": 603 / 609},
    }
    facts = json.loads(files["prepared.json"])
    assert facts["heldout"] == ["dev", "test"] and facts["inputs"] == ["train"]
    assert facts["settings"]["vocabulary_size"] is None
    # Beside a share of the input itself.
    both = prepare(raw / "train.txt", tmp_path / "both", **{**settings, "heldout_share": 0.1})
    assert both["heldout_tokens"] == 609 + 4 * 5
    # A second text of a name gets another one.
    (raw / "more").mkdir()
    (raw / "more" / "train.txt").write_text("a y\n")
    same = {**settings, "heldout": raw / "more" / "train.txt", "heldout_share": 0.1}
    assert prepare(raw / "train.txt", tmp_path / "same", **same)["heldout_tokens"] == 2 + 4 * 5
    assert (tmp_path / "same" / "heldout-train-2.txt").read_text() == "a y\n"
    with pytest.raises(ValueError, match="to be other files than the inputs. Received: .*as both"):
        prepare(raw / "train.txt", tmp_path / "no", **{**same, "heldout": raw / "tra*"})
    with pytest.raises(ValueError, match="Vocabulary .*dev.txt must have one token per line"):
        prepare(raw / "train.txt", tmp_path / "no", **settings, vocabulary=raw / "dev.txt")
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"vocabulary_size": 3}, ValueError, "vocabulary_size to be a whole number, 4 or more"),
        ({"shards": 0}, ValueError, "shards to be a whole number, 1 or more. .* shards=0"),
        ({"seed": "a"}, ValueError, "seed to be a whole number, 0 or more. Received: seed='a'"),
        ({"workers": 0}, ValueError, "workers to be a whole number, 1 or more. .* workers=0"),
        ({"heldout_share": 1.0}, ValueError, "share to be 0 or more and below 1. .*=1.0"),
        ({"heldout_share": "1"}, ValueError, "share to be 0 or more and below 1. .*='1'"),
        ({"weights": {"b": 2}}, ValueError, "weights above 0 for its inputs, a. .*'b': 2.0"),
        ({"weights": {"a": 0}}, ValueError, "weights above 0 for its inputs, a. .*'a': 0.0"),
        ({"weights": {"a": float("nan")}}, ValueError, "Received: weights={'a': nan}"),
        ({"sentences": "x"}, ValueError, "sentences to be one of punkt, stops, lines. .*'x'"),
        ({"tokenizer": "x"}, ValueError, "expects a name of penn, toktok, kiwi, letters"),
        ({"inputs": ["no*such"]}, FileNotFoundError, "No file matches no.such. Pass files"),
        ({"inputs": ["raw"]}, FileNotFoundError, "No file matches raw. Pass files, as in 'FOLDER/"),
        ({"inputs": ["empty.txt"]}, ValueError, "Expected text to train on. Received: none in"),
        ({"output": "raw"}, FileExistsError, "raw exists. Remove it, or choose another folder"),
    ],
)
def test_errors(changes, error, message, raw, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n \n")
    arguments = {"inputs": ["raw/a.txt"], "output": "out", "sentences": "lines", "progress": False}
    with pytest.raises(error, match=message):
        prepare(**(arguments | changes))


def test_nltk_is_asked_for_only_if_needed(raw, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nltk.tokenize.punkt", None)
    with pytest.raises(ImportError, match=r"pip install -e .\.\[pretrain\]"):
        prepare(raw / "a.txt", tmp_path / "out", progress=False)
    plain = {"sentences": "lines", "tokenizer": "whitespace", "heldout_share": 0}
    prepare(raw / "a.txt", tmp_path / "out", **plain, progress=False)


@given(st.lists(st.text(st.characters(exclude_characters="\n\r \t"), min_size=1), unique=True))
@example(["a\r", "b\r", "c\r", "d"])  # three of seven lines end as on Windows
def test_vocabularies_come_back(tmp_path_factory, tokens):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    tokens = [
        t
        for t in tokens
        if not t.startswith("<")
        and t.encode("utf-8", "ignore").decode() == t
        and t != "!!!MAXTERMID"
    ]
    write_vocabulary(path, ["<S>", "</S>", "<UNK>", *tokens])
    assert read_vocabulary(path) == ["<S>", "</S>", "<UNK>", *tokens]


INTERRUPTED = """
import signal, sys
from keras_elmo.cli import main

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in background jobs
    flags = ["--workers", "2", "--sentences", "lines", "--tokenizer", "whitespace"]
    sys.exit(main(["prepare", "raw", "corpus", *flags]))
"""


@pytest.mark.extended
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for a child")
def test_an_interrupted_prepare_leaves_nothing(tmp_path):
    """Neither workers, for which ``communicate`` would wait, nor files."""
    (tmp_path / "raw").write_text("a b\n" * 3_000_000)
    (tmp_path / "script.py").write_text(INTERRUPTED)
    command = [sys.executable, "-W", "ignore", "script.py"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE)
    while b"B/s" not in process.stderr.read1():  # of the progress bar
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=120)[1].decode()
    assert process.returncode == 130 and "Traceback" not in error
    assert "keras-elmo prepare: interrupted\n" in error
    assert {path.name for path in tmp_path.iterdir()} == {"raw", "script.py"}


def test_the_order_does_not_depend_on_text_or_file_system(tmp_path, monkeypatch):
    """Neither that of tokens with one count, nor that of the files of a pattern, in any folder."""
    for name, text in (("a", "c a"), ("b", "b a"), ("deep/er/c", "d")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.txt").write_text(f"{text}\n")
    found = glob.glob
    monkeypatch.setattr(glob, "glob", lambda *x, **y: sorted(found(*x, **y), reverse=True))
    prepare(tmp_path / "**" / "*.txt", tmp_path / "out", **PLAIN, heldout_share=0)
    assert json.loads((tmp_path / "out" / "prepared.json").read_text())["inputs"] == ["a", "b", "c"]
    assert read_vocabulary(tmp_path / "out" / "vocab.txt")[3:] == ["a", "b", "c", "d"]
