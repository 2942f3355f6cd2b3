"""What the task models share: batches, word vectors, column files; and the paper's tables."""

import importlib
import json
import lzma
import pathlib

import keras
import numpy as np
import pytest

from tests.conftest import numpy
from tests.example_runs import COLUMNS, EXAMPLES, EXPERIMENTS, TOKENS, write_columns

pytestmark = pytest.mark.extended


@pytest.fixture
def experiments(monkeypatch):
    """A function that imports a module of the experiments."""
    for name in ("nltk", "seqeval", "matplotlib"):
        pytest.importorskip(name)
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.syspath_prepend(EXPERIMENTS)
    return importlib.import_module


@pytest.fixture
def word_vectors(experiments):
    return experiments("word_vectors")


def test_batches(experiments):
    lengths, chosen = [3, 1, 3, 2, 5, 3, 3, 9], [0, 1, 2, 4, 5, 6]
    make = experiments("cached_layers").Batches
    batches = make(lambda indices, _: (indices, indices), lengths, chosen, 2, 1)
    orders = set()
    for _ in range(20):
        assert sorted(i for x in batches.indices for i in x) == chosen
        widths = [max(lengths[i] for i in x) for x in batches.indices]
        assert sorted(widths) == [3, 3, 5]
        orders.add(str([x.tolist() for x in batches.indices]))
        batches.on_epoch_end()
    assert len(orders) > 10


def test_batches_have_few_widths_on_jax(experiments):
    def make(indices, _):
        return {"words": np.ones((2, 3), "int32")}, np.ones((2, 3, 1), "int32")

    batches = experiments("cached_layers").Batches(make, [3, 3, 3, 3], range(4), 2)
    width = 8 if keras.backend.backend() == "jax" else 3
    inputs, targets = batches[0]
    assert inputs["words"].tolist() == [[1] * 3 + [0] * (width - 3)] * 2
    assert targets[..., 0].tolist() == [[1] * 3 + [-1] * (width - 3)] * 2
    # TensorFlow would expect the width of the first two batches of all batches.
    is_wider = keras.backend.backend() == "tensorflow"
    assert batches[1][0]["words"].shape == (2, width + is_wider)


def test_word_vectors(word_vectors, tmp_path):
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


def test_rare_words_become_unknown(word_vectors):
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
        ("a 1 2 3\nb 1 2 3 4\n", "a word and 3 numbers a line. Received: line 2 of"),
        ("2 3\na 1 2 3\n\n", "a word and 3 numbers a line. Received: line 3 of"),
        ("2 3\na 1 2 x\n", "a word and 3 numbers a line. Received: line 2 of"),
        ("a 1 2 x\n", "each line a word and its numbers. Received: line 1 of"),
        ("b\n", "each line a word and its numbers. Received: line 1 of"),
        ("b 1 2\nc 3 4\n", "vectors for some of the 1 words. Received: path="),
    ],
)
def test_word_vectors_malformed(word_vectors, tmp_path, text, message):
    (tmp_path / "vectors.txt").write_text(text)
    with pytest.raises(ValueError, match=message):
        word_vectors.read_vectors(tmp_path / "vectors.txt", ["a"])


def test_conll_reads_columns(experiments, tmp_path):
    conll = experiments("conll")
    tokens = [sentence.split() for sentence in TOKENS.split(" | ")]
    tags = [sentence.split() for sentence in COLUMNS["BIOES"].split(" | ")]
    for scheme in COLUMNS:
        path = write_columns(tmp_path / scheme, scheme)
        assert conll.read_columns(path) == (tokens, tags)
    path = write_columns(tmp_path / "tabs", "IOB1", "{}\tNN\t{}\tx y\r\n")
    path.write_text(path.read_text("utf-8").removesuffix("\n"), "utf-8")
    assert conll.read_columns(path, tag_column=3) == (tokens, tags)
    universal = write_columns(tmp_path / "universal", "IOB2", "1\t{}\t{}\t-\n")
    text = universal.read_text("utf-8").split("\n", 3)[3]
    universal.write_text("# newdoc id = a b\n" + text.replace("\n\n", "\n\n# text = x y z\n", 1))
    assert conll.read_columns(universal, tag_column=3) == (tokens, tags)
    universal.write_text("-DOCSTART- O\n\nA\tO\n", "utf-8-sig")
    assert conll.read_columns(universal) == ([["A"]], [["O"]])
    back = [conll.recode(sentence, conll.IOB2) for sentence in tags]
    assert [" ".join(sentence) for sentence in back] == COLUMNS["IOB2"].split(" | ")
    types = ["LOC", "ORG", "PER"]
    found = ["O", *(f"{letter}-{kind}" for kind in types for letter in "BIES")]
    assert conll.tag_set(tags) == found
    found = ["O", *(f"{letter}-{kind}" for kind in types for letter in "BI")]
    assert conll.tag_set(back, conll.IOB2) == found
    long = ["O", "B-creative-work", "I-creative-work", "E-creative-work", "I-a"]
    assert conll.recode(conll.recode(long, conll.IOB2), conll.BIOES) == [*long[:4], "S-a"]


@pytest.fixture
def paper_tables(experiments):
    return experiments("paper_tables")


def write_runs(folder, name, variant, scores):
    folder.mkdir(exist_ok=True)
    for seed, score in enumerate(scores, start=1):
        weights = {} if variant.startswith("baseline") else {"at_input": [score, 1 - score]}
        facts = {"options": ["--epochs", "6"], "seconds": 1, "test": score}
        facts |= {"layer_weights": weights, "bilm": f"{seed}{'f' * 63}" if weights else None}
        (folder / f"{name}-{variant}-{seed}.json").write_text(json.dumps(facts))


def test_paper_tables_print_the_finished_runs(paper_tables, tmp_path):
    write_runs(tmp_path, "ner", "baseline", [0.5, 0.6])
    write_runs(tmp_path, "ner", "elmo", [0.64])
    lines = paper_tables.gain_table(tmp_path).splitlines()
    [row] = [line for line in lines if line.startswith("| CoNLL")]
    paper = "CoNLL-2003 | 90.15 | 92.22 | +2.07 / 21.0% |"
    assert row == f"| CoNLL-2003, F1 | 55.00 ± 7.07 | 64.00 | +9.00 / 20.0% | 2, 1 | {paper}"
    assert "| SICK, accuracy | not run | not run |  | 0, 0 | SNLI |" in "\n".join(lines)
    assert lines[-1] == "- CoNLL-2003, F1: `ner.py --epochs 6`, biLM `1fffffff`"
    write_runs(tmp_path, "ner", "elmo", [0.64, 0.65])  # the second with other weights
    assert paper_tables.gain_table(tmp_path).count("`ner.py --epochs 6`, biLM `") == 2

    write_runs(tmp_path, "ner", "baseline_0.05", [0.2])
    write_runs(tmp_path, "ner", "elmo_0.05", [0.4])
    text = paper_tables.shares_table(tmp_path, "ner")
    assert "\n| 5% | 20.00 | 40.00 | +20.00 / 25.0% | 1, 1 |\n" in text
    assert "\n| 100% | 55.00 ± 7.07 | 64.50 ± 0.71 | +9.50 / 21.1% | 2, 2 |\n" in text

    write_runs(tmp_path, "entailment", "baseline", [0.5])
    write_runs(tmp_path, "entailment", "top", [0.75])
    text = paper_tables.layers_table(tmp_path, "entailment")
    assert "\n| no ELMo | 50.00 |  | 1 | 88.1 |\n" in text
    assert "\n| top layer | 75.00 | +25.00 / 50.0% | 1 | 89.1 |\n" in text
    assert "\n| layer 0, without context | not run |  | 0 |  |\n" in text
    assert [x.splitlines()[0][:8] for x in paper_tables.to_markdown(tmp_path)] == [
        "| task |",
        "| SICK, ",
        "| CoNLL-",
    ]


def test_paper_tables_draw_the_mean_weights_of_each_mix(
    paper_tables, tmp_path, monkeypatch, capsys
):
    write_runs(tmp_path, "ner", "elmo", [0.4, 0.6])
    write_runs(tmp_path, "ner", "elmo_0.05", [0.9])
    write_runs(tmp_path, "sst5", "elmo", [0.7])
    rows = {row: x.tolist() for row, x in paper_tables.mean_layer_weights(tmp_path).items()}
    assert rows == {"CoNLL-2003, input": [0.5, 0.5], "SST-5, input": [0.7, pytest.approx(0.3)]}
    paper_tables.main([f"--results={tmp_path}", f"--plot={tmp_path / 'weights.png'}"])
    assert (tmp_path / "weights.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit):
        paper_tables.main([f"--results={tmp_path / 'none'}", f"--plot={tmp_path / 'none.png'}"])
    assert not (tmp_path / "none.png").exists()
    monkeypatch.setattr(paper_tables, "run", lambda *_: None)  # runs of baselines only
    given = [f"--data={tmp_path}", "--vectors=v.txt", f"--results={tmp_path / 'none'}"]
    with pytest.raises(SystemExit):
        paper_tables.main([*given, f"--plot={tmp_path / 'none.png'}"])
    assert "expected runs with ELMo to --plot. Received: none in" in capsys.readouterr().err


def test_paper_tables_run_what_is_missing(paper_tables, tmp_path, monkeypatch):
    (tmp_path / "sick").mkdir()
    for name in paper_tables.TSV:
        (tmp_path / f"sick/{name}.xz").write_bytes(lzma.compress(name.encode()))
    commands, digests = [], ["first weights"]

    def example(command, check):
        file = pathlib.Path(command[command.index("--scores") + 1])
        vectors = command[command.index("--vectors") + 1]
        facts = {"test": 0.5, "settings": {"vectors": vectors}, "layer_weights": {}}
        file.write_text(json.dumps(facts))
        commands.append(command)
        assert pathlib.Path(command[command.index("--dev") + 1]).read_text() == "dev.tsv"

    monkeypatch.setattr(paper_tables.subprocess, "run", example)
    monkeypatch.setattr(paper_tables, "fingerprint", lambda preset: digests[-1])
    given = [f"--data={tmp_path}", f"--cache={tmp_path / 'cache'}", "--tasks=entailment"]
    given += [f"--results={tmp_path / 'found'}", "--seeds", "1", "2"]
    gain = [*given, "--vectors=v.txt", "--tables=gain"]
    paper_tables.main(gain)
    assert len(commands) == 4
    assert ["--no-elmo" in x for x in commands] == ["--cache" not in x for x in commands]
    assert sum("--no-elmo" in x for x in commands) == 2
    (tmp_path / "found/entailment-elmo-2.json").unlink()
    paper_tables.main(gain)
    assert len(commands) == 5 and "--preset" in commands[-1] and commands[-1][-1].endswith(".tmp")
    assert not list((tmp_path / "found").glob("*.tmp"))
    paper_tables.main([*given, "--vectors=v.txt"])  # the other tables, with the same runs
    assert len(commands) == 5 + 2 * 5
    added = [" ".join(x[x.index("64") + 1 : x.index("--preset")]) for x in commands[5:10]]
    assert added == ["--layer -1", "--l2 1", "--layer 0", "--place input", "--place output"]
    gain[-2] = "--vectors=other.txt"
    paper_tables.main(gain)
    assert len(commands) == 19
    digests.append("new weights under the same name")
    paper_tables.main(gain)
    assert len(commands) == 21 and "--preset" in commands[-2] and "--preset" in commands[-1]
    with pytest.raises(SystemExit):
        paper_tables.main(["--data", "x"])


def test_paper_tables_draw_shares_with_both_sides(paper_tables):
    found = paper_tables.variants_of(paper_tables.TASKS["ner"], ["shares"])
    assert len(found) == 6
    for share in ("0.01", "0.05", "0.2"):
        assert found[f"baseline_{share}"] == found[f"elmo_{share}"]
        assert found[f"elmo_{share}"]["--share"] == share
        for side in ("baseline", "elmo"):
            given = paper_tables.TASKS["ner"], f"{side}_{share}", found[f"{side}_{share}"]
            assert ("--preset" in paper_tables.options_of(*given, "p")) == (side == "elmo")


@pytest.mark.parametrize("name", ["questions", "entailment", "srl", "coreference", "ner", "sst5"])
def test_the_scripts_take_the_options_of_the_tables(
    paper_tables, experiments, name, tmp_path, monkeypatch
):
    script, parsed = experiments(name), []
    make_parser = script.make_parser

    def parser_only(*given, **more):
        parser = make_parser(*given, **more)
        parse = parser.parse_args
        monkeypatch.setattr(parser, "parse_args", lambda x: parsed.append(parse(x)) or 1 / 0)
        return parser

    def example(command, check):
        assert command[1] == str(EXAMPLES / f"{name}.py")
        with pytest.raises(ZeroDivisionError):
            script.main(command[2:])
        pathlib.Path(command[-1]).write_text('{"test": 0.5}')

    monkeypatch.setattr(script, "make_parser", parser_only)
    monkeypatch.setattr(paper_tables.subprocess, "run", example)
    monkeypatch.setattr(paper_tables, "fingerprint", lambda preset: "digest")
    given = [f"--data={tmp_path}", "--vectors=v.txt", f"--tasks={name}", "--seeds=5"]
    paper_tables.main([*given, f"--results={tmp_path / 'results'}", f"--cache={tmp_path}"])
    assert len(parsed) == {"entailment": 7, "ner": 8}.get(name, 2)
    for settings in parsed:
        data = settings.data if name in ("coreference", "sst5") else settings.train.parent
        assert data.parent == tmp_path
        assert settings.seed == 5 and settings.scores
        assert (settings.preset is None) == (settings.cache is None)
    task = paper_tables.TASKS[name]
    variants = paper_tables.variants_of(task, paper_tables.TABLES).values()
    epochs = [int({**task.options, **added}.get("--epochs", 30)) for added in variants]
    assert [settings.epochs for settings in parsed] == epochs


def test_the_stored_runs_have_the_options_of_the_tables(paper_tables):
    paths = sorted((EXPERIMENTS / "results").glob("*.json"))
    assert len(paths) >= 30
    for path in paths:
        name, variant, _ = path.stem.split("-")
        task, found = paper_tables.TASKS[name], json.loads(path.read_text("utf-8"))
        added = paper_tables.variants_of(task, paper_tables.TABLES)[variant]
        options = paper_tables.options_of(task, variant, added, "elmo_small_en")
        assert paper_tables.is_finished(
            path, options, pathlib.Path("glove.100d.txt"), found.get("bilm")
        )


def test_the_page_has_the_tables_of_the_results(paper_tables):
    page = (EXAMPLES.parent / "docs/results.md").read_text("utf-8")
    for table in paper_tables.to_markdown(EXPERIMENTS / "results"):
        assert table in page
    root, runs = EXAMPLES.parent, paper_tables.read_runs
    readme = (root / "README.md").read_text("utf-8")
    card = (root / "weights/elmo_small_en/README.md").read_text("utf-8")
    comparison = (root / "docs/comparison.md").read_text("utf-8")
    for name, task in paper_tables.TASKS.items():
        sides = [runs(EXPERIMENTS / "results", name, side) for side in paper_tables.SIDES]
        scores = [paper_tables.score(x) for x in sides]
        means = [x.split(" ")[0] for x in scores]
        if name == "ner":
            assert f"without ELMo: {means[0]}) | {means[1]} with" in readme
        if name != "questions":
            assert f"| {task.title} | {' | '.join(scores)} |" in card
            [row] = [
                x for x in comparison.splitlines() if x.startswith(f"| {task.title.split(',')[0]} ")
            ]
            assert row.endswith(f" | {' | '.join(means)} |")


def test_glove_writes_word2vec_text(experiments, word_vectors, tmp_path):
    glove = experiments("glove")
    numbers = np.arange(102) / 8
    content = {"size": 1, "vectors": {"fine": numbers.tolist(), "not a word": numbers.tolist()}}
    (tmp_path / "wink.json").write_text(json.dumps(content))
    glove.main([str(tmp_path / "wink.json"), str(tmp_path / "100.txt")])
    found = word_vectors.read_vectors(tmp_path / "100.txt", ["fine"])
    np.testing.assert_array_equal(found["fine"], numbers[:100].astype("float32"))
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    np.save(tmp_path / "glove.npy", np.eye(2, 3))
    pd.DataFrame({"index": ["b", "a"]}).to_parquet(tmp_path / "words.parquet")
    glove.main([str(tmp_path), str(tmp_path / "50.txt")])
    assert (tmp_path / "50.txt").read_text() == "2 3\nb 1 0 0\na 0 1 0\n"


def test_words_without_a_vector_start_as_large_as_the_given_ones(word_vectors):
    vectors = {"a": np.random.default_rng(0).normal(0, 0.01, 300).astype("float32")}
    vocabulary = {"a": 2, **{f"word{n}": n for n in range(3, 53)}}
    table = numpy(word_vectors.word_embedding(vocabulary, 100, vectors).embeddings)
    np.testing.assert_allclose(table[3:].std(), vectors["a"].std(), rtol=0.1)
