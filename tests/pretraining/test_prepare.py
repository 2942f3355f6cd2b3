"""Raw text to tokenised sentences and a vocabulary."""

import bz2
import collections
import gzip
import json
import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_elmo.pretraining.prepare import prepare, read_vocabulary, write_vocabulary

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
    counts = prepare(raw / "a.txt", tmp_path / "out", heldout=0, shards=1, progress=False)
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
        raw / "a.txt", tmp_path / "out", heldout=0.3, vocabulary_size=20, seed=3, **settings
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
    # Runs of 200 lines are held out together.
    numbers = [int(line.split("word")[1]) for line in heldout]
    blocks = collections.Counter(number // 200 for number in numbers)
    assert set(blocks.values()) == {200} and 0 < len(blocks) < 25
    seen = collections.Counter(token for line in train for token in line.split())
    vocabulary = read_vocabulary(tmp_path / "out" / "vocab.txt")
    assert vocabulary[:3] == ["<S>", "</S>", "<UNK>"] and len(vocabulary) == 20
    assert [seen[token] for token in vocabulary[3:]] == [n for _, n in seen.most_common(17)]
    unknown = sum(token not in vocabulary for line in heldout for token in line.split())
    assert counts["oov_share"] == unknown / counts["heldout_tokens"]
    facts = json.loads(files["prepared.json"])
    assert counts.items() <= facts.items() and facts["settings"]["seed"] == 3


def test_the_same_bytes_whatever_the_compression_and_the_processes(raw, tmp_path):
    for name, workers in (("one", 1), ("two", 2)):
        prepare(raw / "*", tmp_path / name, heldout=0.4, shards=2, workers=workers, progress=False)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    assert any(name.startswith("heldout-") for name in files_of(tmp_path / "one"))
    for name, opener in (("d.bz2", bz2.open), ("d.txt", open)):
        with opener(raw / name, "wt", encoding="utf-8") as file:
            file.write(TEXT + OTHERS)
        prepare(raw / name, tmp_path / ("out" + name), heldout=0, progress=False)
    assert {
        name: content
        for name, content in files_of(tmp_path / "outd.bz2").items()
        if "vocab" in name
    } == {
        name: content
        for name, content in files_of(tmp_path / "outd.txt").items()
        if "vocab" in name
    }


def test_toktok_and_special_tokens(raw, tmp_path):
    (raw / "a.txt").write_text("\ufeffDas ist <S> ein <UNK> Haus & a|b.\n" * 3, "utf-8")
    prepare(
        raw / "a.txt", tmp_path / "out", heldout=0, sentences="lines", tokenizer="toktok",
        progress=False,
    )  # fmt: skip
    vocabulary = read_vocabulary(tmp_path / "out" / "vocab.txt")
    assert vocabulary[:3] == ["<S>", "</S>", "<UNK>"] and {"Das", "Haus", "&", "|", "."} < set(
        vocabulary
    )
    assert not any(";" in token or "\ufeff" in token for token in vocabulary[3:7])


def test_nothing_is_left_of_a_failed_run(raw, tmp_path):
    (raw / "broken.gz").write_bytes(gzip.compress(TEXT.encode() * 9999)[:900])
    with pytest.raises(OSError, match="broken.gz is damaged: Compressed file ended"):
        prepare(raw / "broken.gz", tmp_path / "out", sentences="lines", progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raw"]


def test_a_file_that_two_patterns_match_is_read_once(raw, tmp_path):
    plain = {"sentences": "lines", "tokenizer": "whitespace", "progress": False, "heldout": 0}
    (raw / "a.txt").write_text("\n".join(f"w{i}" for i in range(900)))
    (raw / "link.txt").symlink_to(raw / "a.txt")
    counts = prepare([raw / "a.txt", raw / "*.txt"], tmp_path / "out", **plain)
    assert counts["tokens"] == 900
    assert not list((tmp_path / "out").glob("heldout-*"))
    with pytest.raises(ValueError, match="Received: none in .*a.txt; all of it was held out, so"):
        prepare(raw / "a.txt", tmp_path / "none", **{**plain, "heldout": 0.999})


def test_text_that_is_not_utf8(raw, tmp_path):
    plain = {"sentences": "lines", "tokenizer": "whitespace", "progress": False}
    (raw / "latin.txt").write_text("café\n", encoding="latin-1")
    (raw / "a.ZIP").write_bytes(b"PK\x03\x04\x14\x00\xff\xfe")
    (raw / "b.GZ").write_bytes(gzip.compress("café\n".encode()))
    for name in ("latin.txt", "a.ZIP"):
        with pytest.raises(ValueError, match=f"Expected UTF-8 text, plain, .* Received: .*{name}"):
            prepare(raw / name, tmp_path / "out", **plain)
    prepare(raw / "b.GZ", tmp_path / "out", heldout=0, **plain)
    assert read_vocabulary(tmp_path / "out" / "vocab.txt")[3:] == ["café"]


def test_too_little_text_to_hold_any_out(raw, tmp_path):
    with pytest.warns(UserWarning, match="No text was held out: a share of 0.01 of so little"):
        prepare(raw / "a.txt", tmp_path / "out", heldout=0.01, progress=False)


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"vocabulary_size": 3}, ValueError, "vocabulary_size to be a whole number, 4 or more"),
        ({"shards": 0}, ValueError, "shards to be a whole number, 1 or more. Received: shards=0"),
        ({"heldout": 1.0}, ValueError, "heldout to be a share .* Received: heldout=1.0"),
        ({"sentences": "x"}, ValueError, "sentences to be one of punkt, lines. .*'x'"),
        ({"tokenizer": "x"}, ValueError, "tokenizer to be one of penn, toktok, whitespace"),
        ({"inputs": ["no*such"]}, FileNotFoundError, "No file matches .*no.such"),
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
    import sys

    monkeypatch.setitem(sys.modules, "nltk.tokenize.punkt", None)
    with pytest.raises(ImportError, match=r"pip install 'keras-elmo\[pretrain\]'"):
        prepare(raw / "a.txt", tmp_path / "out", progress=False)
    plain = {"sentences": "lines", "tokenizer": "whitespace", "heldout": 0}
    prepare(raw / "a.txt", tmp_path / "out", **plain, progress=False)


@given(st.lists(st.text(st.characters(exclude_characters="\n"), min_size=1), unique=True))
def test_vocabularies_come_back(tmp_path_factory, tokens):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    tokens = [
        t for t in tokens if not t.startswith("<") and t.encode("utf-8", "ignore").decode() == t
    ]
    write_vocabulary(path, ["<S>", "</S>", "<UNK>", *tokens])
    assert read_vocabulary(path) == ["<S>", "</S>", "<UNK>", *tokens]


@pytest.mark.parametrize(
    "tokens, message",
    [
        (["<s>", "</s>", "a"], "must start with the lines <S>, </S> and <UNK>. Received: .*'<s>'"),
        (["<S>", "</S>", "<UNK>", "a", "a"], "hold every token once. Received twice: 'a'"),
    ],
)
def test_vocabulary_errors(tokens, message, tmp_path):
    write_vocabulary(tmp_path / "vocab.txt", tokens)
    with pytest.raises(ValueError, match=message):
        read_vocabulary(tmp_path / "vocab.txt")
