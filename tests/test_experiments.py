"""What the task models share: batches, word vectors, column files; and the paper's tables."""

import json
import lzma
import pathlib
from unittest import mock

import keras
import numpy as np
import pytest

from tests.conftest import numpy
from tests.example_runs import COLUMNS, EXAMPLES, EXPERIMENTS, TOKENS, write_columns

pytestmark = pytest.mark.extended


def test_batches(load):
    lengths, chosen = [3, 1, 3, 2, 5, 3, 3, 9], [0, 1, 2, 4, 5, 6]
    make = load("cached_layers").Batches
    batches = make(lambda indices, _: (indices, indices), lengths, chosen, 2, 1)
    orders = set()
    for _ in range(20):
        assert sorted(i for x in batches.indices for i in x) == chosen
        widths = [max(lengths[i] for i in x) for x in batches.indices]
        assert sorted(widths) == [3, 3, 5]
        orders.add(str([x.tolist() for x in batches.indices]))
        batches.on_epoch_end()
    assert len(orders) > 10


def test_word_vectors(load, tmp_path):
    word_vectors = load("word_vectors")
    path = tmp_path / "vectors.txt"
    glove = "the 1 2.5 -3e-1\n. . . 4 5 6\nparis 7 8 9\nthe 0 0 0\nétage\u00a0x 1 1 1\n7 7 7 7\n"
    for text in (glove, "6 3\n" + glove.replace("\n", " \n")):  # GloVe; word2vec and fastText
        path.write_text(text, encoding="utf-8")
        words = ["the", "Paris", ". . .", "étage\u00a0x", "7", "absent"]
        found = word_vectors.read_vectors(path, words)
        assert list(found) == words[:-1]
        np.testing.assert_allclose(found["the"], [1, 2.5, -0.3])
        assert found["Paris"].tolist() == [7, 8, 9] and found["Paris"].dtype == "float32"
    vocabulary = {"Paris": 2, "absent": 3}
    table = numpy(word_vectors.word_embedding(vocabulary, 100, found).embeddings)
    assert table.shape == (4, 3) and table[2].tolist() == [7, 8, 9] and table[3].any()
    # A word without a vector starts as large as the given ones.
    vectors = {"a": np.random.default_rng(0).normal(0, 0.01, 300).astype("float32")}
    vocabulary = {"a": 2, **{f"word{n}": n for n in range(3, 53)}}
    table = numpy(word_vectors.word_embedding(vocabulary, 100, vectors).embeddings)
    np.testing.assert_allclose(table[3:].std(), vectors["a"].std(), rtol=0.1)


def test_rare_words_become_unknown(load):
    word_vectors = load("word_vectors")
    sentences = [["a", "rare", "b"], ["a", "given", "b"]]
    vocabulary, rare = word_vectors.make_vocabulary(sentences, {"given": 0, "more": 0})
    assert vocabulary == {"a": 2, "b": 3, "given": 4, "more": 5, "rare": 6} and rare == {"rare"}
    many = 50 * [["a", "rare", "new"], ["given"]]
    ids = word_vectors.word_ids(many, vocabulary, rare, np.random.default_rng(0))
    assert (ids[::2, [0, 2]] == [2, 1]).all() and (ids[1::2] == [4, 0, 0]).all()
    assert 10 < (ids[::2, 1] == 1).sum() < 40 and set(ids[::2, 1]) == {1, 6}
    assert word_vectors.word_ids(many[:2], vocabulary, rare).tolist() == [[2, 6, 1], [4, 0, 0]]


@pytest.mark.parametrize(
    "text, message",
    [
        ("a 1 2 3\nb 1 2\n", "a word and 3 numbers a line. Received: line 2 of .*: 'b 1 2"),
        ("2 3\na 1 2 x\n", "a word and 3 numbers a line. Received: line 2 of"),
        ("a 1 2 x\n", "each line a word and its numbers. Received: line 1 of"),
        ("b 1 2\nc 3 4\n", "vectors for some of the 1 words. Received: path="),
    ],
)
def test_word_vectors_malformed(load, tmp_path, text, message):
    (tmp_path / "vectors.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        load("word_vectors").read_vectors(tmp_path / "vectors.txt", ["a"])


def test_conll_reads_every_scheme(load, tmp_path):
    conll = load("conll")
    tokens = [sentence.split() for sentence in TOKENS.split(" | ")]
    tags = [sentence.split() for sentence in COLUMNS["BIOES"].split(" | ")]
    for scheme in COLUMNS:
        assert conll.read_columns(write_columns(tmp_path / scheme, scheme)) == (tokens, tags)
    path = write_columns(tmp_path / "tabs", "IOB1", "{}\tNN\t{}\tx y\r\n")
    assert conll.read_columns(path, tag_column=3) == (tokens, tags)
    back = [conll.recode(sentence, conll.IOB2) for sentence in tags]
    assert [" ".join(sentence) for sentence in back] == COLUMNS["IOB2"].split(" | ")
    types = ["LOC", "ORG", "PER"]
    assert conll.tag_set(tags) == ["O", *(f"{x}-{kind}" for kind in types for x in "BIES")]
    assert conll.tag_set(back, conll.IOB2) == ["O", *(f"{x}-{y}" for y in types for x in "BI")]
    long = ["O", "B-creative-work", "I-creative-work", "E-creative-work", "I-a"]
    assert conll.recode(conll.recode(long, conll.IOB2), conll.BIOES) == [*long[:4], "S-a"]


@pytest.mark.parametrize("comment", ["# text = EU O", "#\thttp://a.b\t[2009-10-17]", "#"])
def test_conll_skips_comments_and_numbers(load, tmp_path, comment):
    """As in files after CoNLL-U; but # is also a token."""
    read, path = load("conll").read_columns, tmp_path / "x.conll"
    rows = ["0.1\tleft\tO\t-", "1-2\tzum\t_\t-", "1\tzu\tO\t-", "2\tEU\tB-ORG\t-"]
    path.write_text("\n".join([comment, *rows, "", comment, "1\t#\tO\t-", ""]))
    expected = [["zu", "EU"], ["#"]], [["O", "S-ORG"], ["O"]]
    assert read(path, tag_column=3) == read(path, 2, 3) == expected
    with pytest.raises(ValueError, match="in column 4, O, or .*Received: line 4 of .*--tag-column"):
        read(path, tag_column=4)
    path.write_text(f"{comment}\n# O\n3 O\nEU\u00a0x B-ORG\n", "utf-8-sig")
    # A no-break space separates nothing.
    assert read(path) == ([["#", "3", "EU\u00a0x"]], [["O", "O", "S-ORG"]])


@pytest.mark.parametrize(
    "text, message",
    [
        ("EU B-ORG\nsays\n", "without spaces and, in the last column, O, .*line 2 of .*: 'says'"),
        ("EU B-\n", "O, or B-, I-, E-, S- and a type. Received: line 1 of"),
        ("New York\tB-LOC\n", "a token without spaces.*'New York"),
        ("-DOCSTART- O\n\n", "Expected a sentence or more. Received: path="),
    ],
)
def test_conll_malformed(load, tmp_path, text, message):
    (tmp_path / "train.conll").write_text(text)
    with pytest.raises(ValueError, match=message):
        load("conll").read_columns(tmp_path / "train.conll")


@pytest.fixture
def paper_tables(load):
    return load("paper_tables")


def write_runs(module, path, runs):
    """Write a table of runs: scores by task and variant."""
    rows = []
    for (name, variant), scores in runs.items():
        for seed, score in enumerate(scores, start=1):
            row = dict.fromkeys(module.COLUMNS, "")
            row |= {"task": name, "variant": variant, "seed": str(seed), "test": score}
            is_elmo = not variant.startswith("baseline")
            rows.append(row | {"layer_weights": f"at_input={score}/{1 - score}" if is_elmo else ""})
    module.write_table(path, rows)


def test_paper_tables_show_the_finished_runs(paper_tables, tmp_path, capsys):
    path, picture = tmp_path / "results.csv", tmp_path / "weights.png"
    runs = {("ner", "baseline"): [0.5, 0.6], ("ner", "elmo"): [0.62, 0.66]}
    runs |= {("ner", "baseline_0.05"): [0.2], ("ner", "elmo_0.05"): [0.4]}
    runs |= {("entailment", "baseline"): [0.5], ("entailment", "top"): [0.75]}
    write_runs(paper_tables, path, runs)
    gain, layers, shares = paper_tables.to_markdown(path)
    elmo = "64.00 ± 2.83 | +9.00 / 20.0% |"
    row = f"| CoNLL-2003, F1 | 55.00 ± 7.07 | {elmo} CoNLL-2003 | +2.07 / 21.0% |"
    assert row in gain.splitlines() and "| not run | not run |  | OntoNotes, roles |" in gain
    assert "\n| top layer | 75.00 | +25.00 / 50.0% | 89.1 |\n" in layers
    assert "\n| layer 0, without context | not run |  |  |\n" in layers
    assert "\n| 5% | 20.00 | 40.00 | +20.00 / 25.0% |\n" in shares
    assert f"\n| 100% | 55.00 ± 7.07 | {elmo}\n" in shares
    rows = {row: x.tolist() for row, x in paper_tables.mean_layer_weights(path).items()}
    assert rows == {"CoNLL-2003, input": pytest.approx([0.64, 0.36])}
    paper_tables.main([f"--results={path}", f"--plot={picture}"])
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit):
        paper_tables.main([f"--results={tmp_path / 'none'}", f"--plot={picture}"])
    assert "expected runs with ELMo to --plot. Received: none in" in capsys.readouterr().err


def test_paper_tables_run_what_is_missing(paper_tables, tmp_path, monkeypatch):
    (tmp_path / "sick").mkdir()
    for name in paper_tables.TSV:
        (tmp_path / f"sick/{name}.xz").write_bytes(lzma.compress(name.encode()))
    commands, digests, mix = [], ["first weights"], {"at_input": [0.25, 0.75]}

    def example(command, check):
        facts = {"dev": 0.25, "test": 0.5, "layer_weights": mix if "--cache" in command else {}}
        pathlib.Path(command[command.index("--scores") + 1]).write_text(json.dumps(facts))
        assert pathlib.Path(command[command.index("--dev") + 1]).read_text() == "dev.tsv"
        commands.append(command)

    monkeypatch.setattr(paper_tables.subprocess, "run", example)
    monkeypatch.setattr(paper_tables, "fingerprint", lambda preset: digests[-1])
    results = tmp_path / "results.csv"
    given = [f"--data={tmp_path}", f"--cache={tmp_path / 'cache'}", "--tasks=entailment"]
    given += [f"--results={results}", "--vectors=v.txt", "--seeds", "1", "2"]
    paper_tables.main([*given, "--tables=gain"])
    assert ["--no-elmo" in x for x in commands] == ["--preset" not in x for x in commands]
    runs = paper_tables.read_runs(results, "entailment", "elmo")
    assert runs == 2 * [{"test": 0.5, "layer_weights": mix}] and len(commands) == 4
    paper_tables.write_table(results, paper_tables.read_table(results)[:-1])
    paper_tables.main([*given, "--tables=gain"])
    assert len(commands) == 5 and "--preset" in commands[-1]
    paper_tables.main(given)  # the other tables, with the same runs
    added = [" ".join(x[x.index("64") + 1 : x.index("--preset")]) for x in commands[5:10]]
    assert added == ["--layer -1", "--l2 1", "--layer 0", "--place input", "--place output"]
    digests.append("new weights under the same name")
    paper_tables.main([*given, "--tables=gain"])
    assert len(commands) == 17 and "--preset" in commands[-2] and "--preset" in commands[-1]
    assert len(paper_tables.read_table(results)) == 14  # a run replaces the row of an earlier one


@pytest.mark.parametrize("name", ["questions", "entailment", "srl", "coreference", "ner", "sst5"])
def test_the_scripts_take_the_options_of_the_tables(paper_tables, load, name, monkeypatch):
    script, task = load(name), paper_tables.TASKS[name]
    files = [x for pair in task.files.items() for x in pair]
    parsed = mock.Mock(side_effect=InterruptedError)  # the scripts set the seed after parsing
    monkeypatch.setattr(keras.utils, "set_random_seed", parsed)
    for variant, added in paper_tables.variants_of(task, paper_tables.TABLES).items():
        with pytest.raises(InterruptedError):
            script.main([*paper_tables.options_of(task, variant, added, "elmo_mini_en"), *files])


def test_the_page_has_the_tables_of_the_results(paper_tables):
    page = (EXAMPLES.parent / "docs/results.md").read_text("utf-8")
    for table in paper_tables.to_markdown(EXPERIMENTS / "results.csv"):
        assert table in page


def test_glove_writes_word2vec_text(load, tmp_path):
    glove = load("glove")
    numbers = np.arange(102) / 8
    content = {"size": 1, "vectors": {"fine": numbers.tolist(), "not a word": numbers.tolist()}}
    (tmp_path / "wink.json").write_text(json.dumps(content))
    glove.main([str(tmp_path / "wink.json"), str(tmp_path / "100.txt")])
    found = load("word_vectors").read_vectors(tmp_path / "100.txt", ["fine"])
    np.testing.assert_array_equal(found["fine"], numbers[:100].astype("float32"))
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    np.save(tmp_path / "glove.npy", np.eye(2, 3))
    pd.DataFrame({"index": ["b", "a"]}).to_parquet(tmp_path / "words.parquet")
    glove.main([str(tmp_path), str(tmp_path / "50.txt")])
    assert (tmp_path / "50.txt").read_text() == "2 3\nb 1 0 0\na 0 1 0\n"
