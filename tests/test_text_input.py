"""Lines of files, columns of tables, and raw text as tokenised sentences."""

import bz2
import gzip
import io
import json
import lzma
import sys
import types

import pytest

from keras_elmo import WordTokenizer
from keras_elmo.cli import main
from keras_elmo.prepare import prepare
from keras_elmo.text_input import (
    SentenceRules,
    read_lines,
    read_sentences,
    read_token_lists,
    tokenize_file,
)

KOREAN = "배가 고프다! 배를 먹었다.\n\n“잘한다” 잘해!\r\n" * 40
PLAIN = {"tokenizer": "whitespace", "progress": False}


@pytest.fixture
def raw(tmp_path):
    (tmp_path / "raw.txt").write_bytes(b"\xef\xbb\xbf" + KOREAN.encode())
    return tmp_path / "raw.txt"


def read(path, content, column="text", tokenize=None):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return list(read_token_lists(path, column, tokenize))


def test_a_line_ends_at_a_line_feed(tmp_path):
    text = "\ufeffa\rb c\r\n10\u00a0km  x\u2028y\td\r\r\n\nlast"
    (tmp_path / "t.txt").write_bytes(text.encode())
    sentences = [["a\rb", "c"], ["10\u00a0km", "x\u2028y", "d"], [], ["last"]]
    assert list(read_token_lists(tmp_path / "t.txt")) == sentences
    assert list(read_token_lists(io.BytesIO(text.encode()))) == sentences
    # In an open text, a byte-order mark is part of the first token, as in a list of tokens.
    assert list(read_token_lists(io.StringIO("\ufeffa b"))) == [["\ufeffa", "b"]]
    assert read_sentences(tmp_path / "t.txt") == [s for s in sentences if s]
    spaces = "\u3000\n\u00a0 a\n \n"
    assert read(tmp_path / "a.txt", spaces, None) == [["\u3000"], ["\u00a0", "a"], []]


@pytest.mark.parametrize(
    "open_file, end", [(gzip.open, "gz"), (bz2.open, "bz2"), (lzma.open, "xz")]
)
def test_compressed_files(tmp_path, open_file, end):
    path = tmp_path / f"t.csv.{end}"
    with open_file(path, "wt") as file:
        file.write("text\n" + "a b\n" * 5000)
    assert list(read_token_lists(path, "text")) == [["a", "b"]] * 5000
    path.write_bytes(path.read_bytes()[:-12])
    for read_rows in (lambda: read_token_lists(path, "text"), lambda: read_lines(path)):
        with pytest.raises(OSError, match=f"t.csv.{end} is damaged"):
            list(read_rows())


def test_bytes_that_are_not_utf8(tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"a\ncaf\xe9\n")
    with pytest.raises(
        ValueError, match="Expected UTF-8 .* Received: line 2 of .*latin.txt, which"
    ):
        list(read_lines(tmp_path / "latin.txt"))


TEXTS = ['A "fine" film. Too\nlong!', "It rained."]
TOKENS = [["A", '"', "fine", '"', "film", ".", "Too", "long", "!"], ["It", "rained", "."]]


@pytest.mark.parametrize(
    "name, content",
    [
        ("t.csv", '\ufefftext,id\r\n"A ""fine"" film. Too\nlong!",1\r\n\r\nIt rained.,2\r\n'),
        ("T.TSV", 'id\ttext\n1\tA "fine" film. Too long!\n2\tIt rained.\n'),
        ("t.jsonl", "\n".join(json.dumps({"text": text, "id": {"id": 1}}) for text in TEXTS)),
        ("t.ndjson", json.dumps({"text": TOKENS[0]}) + '\n\n{"text": "It rained."}\n'),
    ],
)
def test_a_column_of_raw_text(tmp_path, name, content):
    assert read(tmp_path / name, content, tokenize=WordTokenizer("penn")) == TOKENS
    with pytest.raises(ValueError, match="one column of .*column=None, and the columns .*text"):
        read(tmp_path / name, content, column=None)


def test_two_columns_of_one_name(tmp_path):
    with pytest.raises(ValueError, match="one column of .*column='text', and the columns text, te"):
        read(tmp_path / "t.csv", "text,text\na,b\n")


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table({"id": [1, 2], "text": TEXTS}), path)
    assert list(read_token_lists(path, "text", WordTokenizer("penn"))) == TOKENS
    with pytest.raises(ValueError, match="column='review', and the columns id, text. Choose one"):
        list(read_token_lists(path, "review"))


def test_cells(tmp_path):
    assert read(tmp_path / "t.csv", 'text\n"a b\r\nc\rd\ne"\n') == [["a", "b", "c", "d", "e"]]
    assert read(tmp_path / "t.csv", f"text\n{'d ' * 150_000}\n") == [["d"] * 150_000]
    quotes = 'label\ttext\n1\t"Great , he said\n0\tBad film .\n1\t"It" ended "\n'
    assert read(tmp_path / "t.tsv", quotes) == [
        ['"Great', ",", "he", "said"],
        ["Bad", "film", "."],
        ['"It"', "ended", '"'],
    ]


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("t.csv", 'text\nfine\n""\n', "text in every row. Received: row 1 of .*t.csv: '', str"),
        ("t.csv", 'text\n"open\n', "as many fields .*t.csv. Received: unexpected end .* in line 2"),
        ("t.csv", "label,text\n1,Good, but long.\n", "another number of fields in line 2. Quote"),
        ("t.csv", "text;label\nGood.;1\n", "column='text', and the columns text;label. Choose"),
        ("t.csv", "", "one column of .*column='text', and the columns none. Choose"),
        ("t.csv", "text\n\"['A', 'film']\"\n", "row 0 of .*, a printed list of tokens. Drop"),
        ("t.tsv", "id\ttext\n7\ta\n8\tb\tc\n", "another number of fields in line 3"),
        ("t.jsonl", '{"text": "a"}\n{"text": null}\n', "row 1 of .*t.jsonl: 'None', NoneType"),
        ("t.jsonl", '{"text": {"a": "b"}}\n', "Received: row 0 of .*, tuple"),
        ("t.jsonl", '{"text": "a"}\n[1]\n', "one column of line 2 of .*, and the columns none"),
        (
            "t.jsonl",
            '{"text": "a", "text": "b"}',
            "line 1 of .*, and the columns text, text",
        ),
        ("t.jsonl", f'{{"text": {"1" * 5000}}}', "JSON object .* Received: .* in line 1 of .*t.js"),
        ("t.jsonl", "[" * 10**6, "Expected a JSON object in each line. Received: .* in line 1 of"),
        ("t.txt", "text\n", "a file that ends with .csv, .tsv, .jsonl, .ndjson, .parquet. Rec"),
    ],
)
def test_bad_tables(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path / name, content)


def test_fasta(tmp_path):
    records = "\n>sp|P1 a protein\nMKV\nLL\n\n>no sequence\n>last\nAA\n"
    sequences = [list("MKVLL"), [], list("AA")]
    assert read(tmp_path / "p.fasta", records, None, WordTokenizer("letters")) == sequences
    with pytest.raises(ValueError, match=r"A FASTA file is raw text. .* Pass raw \(--raw\)"):
        read(tmp_path / "p.fasta", records, None)
    with pytest.raises(ValueError, match="a sequence without its header. .* Name the file .fasta"):
        read(tmp_path / "p.txt", records, None, WordTokenizer("letters"))


def test_tokens_stay_as_they_are():
    line = "\u3000Er sagte ‚ hallo ‘ .\n"
    assert SentenceRules("lines", "whitespace", [])([line, " \n"]) == [line.strip("\n")]
    assert SentenceRules("lines", "penn", [])([line]) == ["Er sagte ' hallo ' ."]


def test_stops():
    """Without capitals Punkt takes the last word of many a sentence for an abbreviation."""
    rules = SentenceRules("stops", "whitespace", [])
    sentences = [
        "배가 고프다.",
        '"먹자!"',
        "J. R. R. 톨킨은 2020. 1. 3. 밤(3.5%)에 왔다...",
        "왜??",
        "아",
    ]
    assert rules([" ".join(sentences) + "\r\n", " \n"]) == sentences
    assert rules(["他来了。她说：“真的？！”是的。"]) == ["他来了。", "她说：“真的？！”", "是的。"]
    assert rules(["هل جاء؟نعم", "वह आया।वह गया।"]) == ["هل جاء؟", "نعم", "वह आया।", "वह गया।"]


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
    prepared = prepare(raw, tmp_path / "corpus", **given, **whole)
    [shard] = (tmp_path / "corpus").glob("train-*")
    assert shard.read_text("utf-8").splitlines() == [line for line in lines if line]
    assert prepared["tokens"] == counts["tokens"]


def test_the_command_tokenize(raw, tmp_path, capsys, monkeypatch):
    given = ["--tokenizer", "whitespace", "--quiet"]
    command = ["tokenize", str(raw), str(tmp_path / "out"), "--json", *given]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["lines"] == 120
    assert main(command) == 1 and "which exists. Pass overwrite=True" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0
    capsys.readouterr()
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=io.BytesIO(b" a  b\n\nc")))
    assert main(["tokenize", "-", "-", *given]) == 0
    assert capsys.readouterr().out == "a b\n\nc\n"
    assert main(["tokenize", "-", "-", *given, "--sentences", "punkt"]) == 1
    assert "Punkt reads it twice. Received: sentences='punkt' with -" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdout", io.StringIO())  # of Jupyter, without a buffer
    assert tokenize_file(raw, "-", **PLAIN)["lines"] == sys.stdout.getvalue().count("\n")


def test_nothing_is_written_of_a_text_that_cannot_be_read(raw, tmp_path):
    (tmp_path / "cut.gz").write_bytes(gzip.compress(KOREAN.encode() * 999)[:-9])
    with pytest.raises(OSError, match="cut.gz is damaged"):
        tokenize_file(tmp_path / "cut.gz", tmp_path / "out", **PLAIN)
    with pytest.raises(FileNotFoundError, match="absent.gz"):
        tokenize_file(tmp_path / "absent.gz", tmp_path / "out", **PLAIN)
    with pytest.raises(ValueError, match="raw.txt, which is also an input"):
        tokenize_file(raw, raw, overwrite=True, **PLAIN)
    with pytest.raises(ValueError, match="to be one of punkt, stops, lines. .*sentences='x'"):
        tokenize_file(raw, tmp_path / "out", sentences="x", **PLAIN)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cut.gz", "raw.txt"]
