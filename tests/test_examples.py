"""Every example runs to its end, on its own data and on files in the standard formats."""

import functools
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import keras_elmo
from tests.conftest import make_arrays, make_config, numpy, write_preset

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


def run(script, *arguments):
    finished = subprocess.run(
        [sys.executable, EXAMPLES / script, *map(str, arguments)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished.stdout


@pytest.fixture
def preset(tmp_path):
    config = make_config(max_characters_per_token=50)
    write_preset(tmp_path / "preset", config, make_arrays(config))
    return tmp_path / "preset"


def test_quickstart(tmp_path, preset):
    pytest.importorskip("nltk")
    out = run("quickstart.py", "--epochs", 2)
    assert "layer weights" in out and "classes of two new sentences" in out
    trees = tmp_path / "trees.txt"
    trees.write_text("(3 (2 Good) (2 fun))\n\n(1 (2 Not) (1 (2 that) (2 good)))\n(0 (2 Bad))\n")
    out = run("quickstart.py", "--data", trees, "--limit", 2, "--preset", preset, "--epochs", 1)
    assert "on 2 sentences" in out


def test_input_and_output(tmp_path, preset):
    out = run("input_and_output.py")
    before, after = (float(x) for x in out.splitlines()[0].removeprefix("loss ").split(" -> "))
    assert after < before / 2
    assert "at_input" in out and "at_output" in out and "Ada/NAME" in out
    columns = tmp_path / "train.conll"
    columns.write_text("-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n \n\nPeter NNP B-PER\n")
    out = run("input_and_output.py", "--data", columns, "--preset", preset, "--epochs", 1)
    assert out.splitlines()[-1].startswith("EU/")


def test_random_bilm(tmp_path):
    run("random_bilm.py", tmp_path / "bilm")
    assert sorted(p.name for p in (tmp_path / "bilm").iterdir()) == ["options.json", "weights.hdf5"]


def test_words_in_context(tmp_path, preset):
    pytest.importorskip("matplotlib")
    text = tmp_path / "text.txt"
    text.write_text("a bank here\nthe bank\nno word\n")
    picture = tmp_path / "bank.png"
    out = run(
        *("words_in_context.py", "--word", "bank", "--text", text, "--preset", preset),
        *("--plot", picture),
    )
    assert "inf" not in out  # the other token is all the neighbours there are
    assert out.startswith("bank: 2 tokens, all alike in layer 0\n  a [bank] here\n")
    assert picture.read_bytes().startswith(b"\x89PNG")


TREES = {
    "train": """
(4 (2 An) (4 (4 absolute) (2 (2 ``) (2 (3 delight) (2 '')))))

(0 (2 -LRB-) (0 (0 (2 Not) (3 delight)) (2 -RRB-)))
(3 (2 either\\/or) (3 (2 is) (3 fine)))
""",
    "dev": "(4 (2 An) (4 delight))\n" + 2 * "(1 (1 Not) (2 (2 fine) (2 at)))\n",
    "test": "(3 fine)\n(0 (2 (2 Not) (3 unseen)) (2 (2 at) (2 (2 all) (2 !))))\n",
}


@pytest.fixture
def sst5(tmp_path, monkeypatch):
    """The module, and trees in the folder ``trees``."""
    pytest.importorskip("nltk")
    (tmp_path / "trees").mkdir()
    for name, text in TREES.items():
        (tmp_path / "trees" / f"{name}.txt").write_text(text)
    monkeypatch.syspath_prepend(EXAMPLES)
    import sst5

    return sst5


def test_batches(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    from cached_layers import Batches, passes_per_epoch

    lengths, chosen = [3, 1, 3, 2, 5, 3, 3, 9], [0, 1, 2, 4, 5, 6]
    batches = Batches(lambda indices, random: (indices, random), lengths, chosen, 2, 1, passes=3)
    assert len(batches) == 9
    for _ in range(20):
        assert sorted(i for x in batches.indices for i in x) == sorted(3 * chosen)
        widths = [max(lengths[i] for i in x) for x in batches.indices]
        assert widths[0] != widths[1] and sorted(widths) == 6 * [3] + 3 * [5]
        before = [x.tolist() for x in batches.indices]
        batches.on_epoch_end()
        assert before != [x.tolist() for x in batches.indices]
    assert [passes_per_epoch(x) for x in (1, 0.5, 0.2, 0.05, 0.01)] == [1, 1, 2, 4, 10]


@pytest.fixture
def word_vectors(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import word_vectors

    return word_vectors


def arguments(tmp_path, preset, *more):
    given = "--data", tmp_path / "trees", "--preset", preset, "--cache", tmp_path / "cache"
    return [str(x) for x in (*given, "--units", 4, "--dimension", 5, *more)]


def test_sst5_reads_trees(sst5, tmp_path):
    train = sst5.read_split(tmp_path / "trees", "train")
    labelled = dict(zip(train.phrases, train.labels.tolist(), strict=True))
    assert labelled['absolute " delight "'] == 4 and labelled["( Not delight )"] == 0
    assert labelled["either/or"] == 2 and labelled["delight"] == 3
    assert len(train.phrases) == 9 + 7 - 1 + 5 - 1  # "delight" and '"' occur twice
    assert train.phrases.index("delight") in train.trees[0] and len(train.trees) == 3
    assert train.phrases.index("delight") in train.trees[1]
    dev = sst5.read_split(tmp_path / "trees", "dev")
    assert dev.phrases == ("An delight", "Not fine at") and dev.labels.tolist() == [4, 1]
    assert dev.trees == [[0], [1], [1]]  # a sentence that occurs twice counts twice
    assert len(sst5.read_split(tmp_path / "trees", "train", limit=1).trees) == 1


def test_sst5_cached_is_on_the_fly(sst5, tmp_path, preset):
    given = arguments(tmp_path, preset, "--quick", "--json", "--learning-rate", 0.05)
    printed = json.loads(run("sst5.py", *given, "--seeds", 1, 2))
    assert len(list((tmp_path / "cache").glob("*.hdf5"))) == 3
    cached, other = printed["runs"]
    assert cached["losses"] != other["losses"] and cached["epochs"] == 2
    assert printed["dev"]["mean"] == pytest.approx((cached["dev"] + other["dev"]) / 2)
    again, fresh = (
        sst5.train_and_score(sst5.parse([*given, *more]), seed=1) for more in ([], ["--on-the-fly"])
    )
    for found in (again, fresh):
        assert (found["dev"], found["test"]) == (cached["dev"], cached["test"])
        assert found["parameters"] == cached["parameters"]
        np.testing.assert_allclose(found["losses"], cached["losses"], rtol=1e-3)
        for place in ("input", "output"):
            weights = cached["layer_weights"][place]
            assert max(weights) - min(weights) > 1e-3  # they were trained
            np.testing.assert_allclose(found["layer_weights"][place], weights, atol=1e-3)


def test_sst5_without_elmo_and_with_the_top_layer(sst5, tmp_path, preset):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("delight 1 2 3\nunseen 4 5 6\n")
    out = run(
        "sst5.py",
        *arguments(tmp_path, preset, "--elmo", "none", "--epochs", 1, "--vectors", vectors),
    )
    assert "dev accuracy" in out and "test accuracy" in out and not (tmp_path / "cache").exists()
    more = "--elmo", "input", "--layers", "top", "--l2", 1, "--share", 0.3, "--epochs", 1
    settings = sst5.parse(arguments(tmp_path, preset, *more))
    found = sst5.train_and_score(settings)
    assert found["layer_weights"] == {}
    words = {8: 4, 7: 4, 5: 3}[found["phrases"]]  # of the one tree that is drawn
    lstms = 2 * 4 * 4 * (5 + 12 + 4 + 1)
    assert found["parameters"] == 5 * (words + 2) + lstms + 5 * (2 * 2 * 4 + 1)


def test_sst5_padding_changes_nothing(sst5, tmp_path, preset, word_vectors):
    settings = sst5.parse(arguments(tmp_path, preset, "--on-the-fly"))
    elmo = keras_elmo.ElmoLayer.from_preset(preset)
    model, _ = sst5.build(settings, word_vectors.word_embedding({"fine": 2}, 5), elmo)
    splits = [sst5.read_split(tmp_path / "trees", "test")]
    more = sst5.make_more_inputs(settings, elmo, splits)
    make = functools.partial(sst5.make_batch, {"fine": 2}, set(), more, splits[0])
    together, alone = (sst5.Batches(make, [1, 5], np.arange(2), size) for size in (2, 1))
    inputs, labels = together[0]
    assert inputs["words"].tolist() == [[2, 0, 0, 0, 0], [1] * 5] and labels.tolist() == [3, 0]
    apart = [numpy(model(alone[i][0]))[0] for i in range(2)]
    np.testing.assert_allclose(numpy(model(inputs)), apart, atol=1e-5)


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


def test_ablations_run_what_is_missing(sst5, tmp_path, preset):
    pytest.importorskip("matplotlib")
    given = arguments(tmp_path, preset, "--quick")
    first = run("ablations.py", "sst5", tmp_path / "results", *given, "--only", "gain", "--jobs", 2)
    files = sorted((tmp_path / "results" / "runs").iterdir())
    assert len(files) == 2 and {file.suffix for file in files} == {".json"}
    assert "| baseline |" in first and "| +ELMo |" in first and first.count("| 1 |") == 2
    files[0].unlink()
    kept = [file.stat().st_mtime_ns for file in files[1:]]
    again = run("ablations.py", "sst5", tmp_path / "results", *given, "--only", "gain")
    assert again == first and files[0].exists()
    assert kept == [file.stat().st_mtime_ns for file in files[1:]]


def test_ablations_tables(sst5, tmp_path, preset, capsys):
    pytest.importorskip("matplotlib")
    import ablations

    given = arguments(tmp_path, preset, "--seeds", 1, 2)
    results = tmp_path / "results"
    runs = ablations.Runs("sst5", given, results / "runs")

    def fake(changes, seed, test):
        elmo = changes.get("elmo", "both")
        places = {"both": ["input", "output"], "none": []}.get(elmo, [elmo])
        weights = {place: [0.5, 0.25, 0.25] for place in places}
        found = {"dev": test, "test": test, "epochs": 1, "seconds_per_epoch": 1.0}
        text = json.dumps({**found, "layer_weights": weights})
        runs.path(changes, seed).write_text(text)

    best = {"dropout": 0.3, "learning_rate": 2e-3}
    for side in ({"elmo": "none"}, {}):
        for dropout in (0.3, 0.5):
            for rate in (1e-3, 2e-3):
                trial = {"dropout": dropout, "learning_rate": rate, "share": 0.2}
                fake({**side, **trial}, 1, 0.1)
    sizes = ablations.rows_of_shares(ablations.SHARES)
    for rows in (*ablations.TABLES.values(), sizes):
        for changes in rows.values():
            for seed in (1, 2):
                without = 0.3 if changes.get("elmo") == "none" else 0.4
                fake({**best, **changes}, seed, without + 0.02 * (seed - 1))
    made = len(list((results / "runs").iterdir()))
    # 6 at full size for each seed, 6 with less; the best trials are two runs of "sizes" too.
    assert made == 8 + 2 * (6 + 6) - 2
    ablations.main(["sst5", str(results), "--search", *given])
    assert made == len(list((results / "runs").iterdir()))
    out = capsys.readouterr().out
    assert (
        "| baseline, dropout 0.3, learning_rate 0.002 | 30.00 ± 0.00 | 30.00 ± 0.00 |  | 1 |" in out
    )
    assert "| baseline | 31.00 ± 1.41 | 31.00 ± 1.41 |  | 2 |" in out
    assert "| all layers, lambda 1 | 41.00 ± 1.41 | 41.00 ± 1.41 | +10.00 | 2 |" in out
    assert "| 5%, +ELMo | 41.00 ± 1.41 | 41.00 ± 1.41 | +10.00 | 2 |" in out
    assert "Layer weights at the output (both), from layer 0: 0.500, 0.250, 0.250" in out
    facts = json.loads((results / "tables.json").read_text())
    assert facts["settings"] == {"baseline": best, "+ELMo": best}
    assert facts["tables"]["gain"]["+ELMo"]["test"]["mean"] == pytest.approx(0.41)
    for name in ("sizes.png", "weights.png"):
        assert (results / name).read_bytes().startswith(b"\x89PNG")


def test_ablations_leave_the_share_to_the_task(sst5, tmp_path, preset):
    pytest.importorskip("matplotlib")
    import ablations

    given = arguments(tmp_path, preset, "--share", 0.5)
    runs = ablations.Runs("sst5", given, tmp_path / "results" / "runs")
    found = {"dev": 0.5, "test": 0.5, "epochs": 1, "seconds_per_epoch": 1.0, "layer_weights": {}}
    for changes in (ablations.BASELINE, ablations.ELMO):
        runs.path(changes, 1).write_text(json.dumps(found))
    ablations.main(["sst5", str(tmp_path / "results"), "--only", "gain", *given])
    assert len(list(runs.folder.iterdir())) == 2
    assert "--share" in json.loads((tmp_path / "results" / "tables.json").read_text())["arguments"]


COLUMNS = {  # the same entities, two of them side by side
    "IOB1": "I-PER I-PER O I-LOC B-LOC | O I-ORG I-PER O",
    "IOB2": "B-PER I-PER O B-LOC B-LOC | O B-ORG B-PER O",
    "BIOES": "B-PER E-PER O S-LOC S-LOC | O S-ORG S-PER O",
}
TOKENS = "Ada Lovelace saw London Paris | The EU's Smith left\u2026"


def write_columns(path, scheme, line="{} {}\n"):
    sentences = (text.split(" | ") for text in (TOKENS, COLUMNS[scheme]))
    text = "".join(
        "".join(line.format(*pair) for pair in zip(*map(str.split, sentence))) + "\n"
        for sentence in zip(*sentences)
    )
    path.write_text("-DOCSTART- O\n\n\n" + text, encoding="utf-8")
    return path


@pytest.fixture
def ner(monkeypatch):
    pytest.importorskip("seqeval")
    monkeypatch.syspath_prepend(EXAMPLES)
    import ner

    return ner


def test_ner_reads_columns(ner, tmp_path):
    tokens = [sentence.split() for sentence in TOKENS.split(" | ")]
    tags = [sentence.split() for sentence in COLUMNS["BIOES"].split(" | ")]
    for scheme in COLUMNS:
        path = write_columns(tmp_path / scheme, scheme)
        assert ner.read_columns(path) == (tokens, tags)
        assert ner.read_columns(path, limit=1) == (tokens[:1], tags[:1])
    path = write_columns(tmp_path / "tabs", "IOB1", "{}\tNN\t{}\tx y\r\n")
    path.write_text(path.read_text("utf-8").removesuffix("\n"), "utf-8")
    assert ner.read_columns(path, column=2) == ner.read_columns(path, -2) == (tokens, tags)
    universal = write_columns(tmp_path / "universal", "IOB2", "1\t{}\t{}\t-\n")
    text = universal.read_text("utf-8").split("\n", 3)[3]
    universal.write_text("# newdoc id = a b\n" + text.replace("\n\n", "\n\n# text = x y z\n", 1))
    assert ner.read_columns(universal, column=2, token_column=1) == (tokens, tags)
    back = [ner.recode(sentence, ner.IOB2) for sentence in tags]
    assert [" ".join(sentence) for sentence in back] == COLUMNS["IOB2"].split(" | ")
    long = ["O", "B-creative-work", "I-creative-work", "E-creative-work", "I-a"]
    assert ner.recode(ner.recode(long, ner.IOB2), ner.BIOES) == [*long[:4], "S-a"]
    written = ner.columns(tokens[:1], tags[:1], back[:1])
    assert written.startswith("Ada B-PER B-PER\nLovelace E-PER I-PER\n")
    assert written.endswith("Paris S-LOC B-LOC\n\n")


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "EU B-ORG\nsays\n",
            "and in another column its tag.*line 2 of .*, column=-1, token_column=0: 'says'",
        ),
        ("EU NNP\n", "O, or B-, I-, E-, S- and a type. Received: line 1 of"),
        ("O\n", "Received: line 1 of"),
        ("EU B-\n", "Received: line 1 of"),
        ("New York\tB-LOC\n", "expects a token without spaces.*'New York"),
        ("-DOCSTART- O\n\n", "expects a sentence or more. Received: path="),
    ],
)
def test_ner_malformed(ner, tmp_path, text, message):
    (tmp_path / "train.conll").write_text(text)
    with pytest.raises(ValueError, match=message):
        ner.read_columns(tmp_path / "train.conll")


def test_ner_trains_caches_saves_and_tags(ner, tmp_path, preset):
    file = write_columns(tmp_path / "all.conll", "IOB1")
    given = [f"--{name}={file}" for name in ("train", "dev", "test")]
    given += "--preset", preset, "--cache", tmp_path / "cache", "--predictions", tmp_path
    given += "--elmo", "both", "--units", 16, "--dimension", 5, "--learning-rate", 0.03
    given = [str(x) for x in (*given, "--dropout", 0.1, "--batch-size", 1)]
    on_the_fly = json.loads(run("ner.py", *given, "--on-the-fly", "--quick", "--json"))["runs"][0]
    assert not (tmp_path / "cache").exists()

    more = "--epochs", "40", "--patience", "40", "--save", str(tmp_path / "saved")
    found = ner.train_and_score(ner.parse([*given, *more]))
    assert len(list((tmp_path / "cache").glob("*.hdf5"))) == 3
    assert found["dev"] == found["test"] == 1 and found["sentences"] == 2
    assert found["epochs"] == 40 and on_the_fly["epochs"] == 2
    np.testing.assert_allclose(found["losses"][:2], on_the_fly["losses"], rtol=1e-3)
    assert found["parameters"] == on_the_fly["parameters"]
    assert set(found["layer_weights"]) == {"input", "output"}

    gold = write_columns(tmp_path / "gold", "IOB2", "{0} {1} {1}\n").read_text("utf-8")
    assert (tmp_path / "test-1.conll").read_text("utf-8") == gold.removeprefix("-DOCSTART- O\n\n\n")
    (tmp_path / "text").write_text(TOKENS.replace(" | ", "\n\n"), encoding="utf-8")
    tagged = run("ner.py", "--tag", tmp_path / "text", "--load", tmp_path / "saved")
    assert tagged == write_columns(tmp_path / "gold", "IOB2").read_text("utf-8")[15:]

    # With the biLM inside from the start, and without one.
    for more in (["--on-the-fly"], ["--elmo", "none"]):
        settings = ner.parse([*given, *more, "--quick", "--save", str(tmp_path / "other")])
        ner.train_and_score(settings)
        tagged = ner.tag_file(tmp_path / "text", tmp_path / "other", batch_size=2)
        text = (tmp_path / "test-1.conll").read_text("utf-8")
        assert tagged == "".join(
            " ".join((line.split(" ")[0], line.split(" ")[2])) + "\n" if line else "\n"
            for line in text.split("\n")[:-1]
        )


def test_ablations_of_ner(ner, tmp_path, preset, capsys):
    pytest.importorskip("matplotlib")
    import ablations

    file = write_columns(tmp_path / "all.conll", "IOB1")
    given = [f"--{name}={file}" for name in ("train", "dev", "test")]
    given += "--preset", preset, "--cache", tmp_path / "cache", "--units", 4, "--dimension", 5
    given += "--quick", "--only", "gain", "weights"
    ablations.main(["ner", str(tmp_path / "results"), *map(str, given)])
    out = capsys.readouterr().out
    assert "| gain | dev F1 | test F1 | gain | runs |" in out
    assert "Layer weights at the input (both), from layer 0: 0.3" in out
    runs = ablations.Runs("ner", [str(x) for x in given[:-3]], tmp_path / "results" / "runs")
    before = runs.path({}, 1), runs.path(ablations.BASELINE, 1)
    arrays = make_arrays(make_config(max_characters_per_token=50), seed=1)
    write_preset(tmp_path / "preset", make_config(max_characters_per_token=50), arrays)
    ablations.fingerprint.cache_clear()
    assert runs.path({}, 1) != before[0] and runs.path(ablations.BASELINE, 1) == before[1]


def test_ner_without_elmo(ner, tmp_path):
    file = write_columns(tmp_path / "all.conll", "IOB2")
    (tmp_path / "vectors.txt").write_text("ada 1 2 3\n")
    given = [f"--{name}={file}" for name in ("train", "dev", "test")]
    given += "--elmo", "none", "--vectors", tmp_path / "vectors.txt", "--units", 4, "--quick"
    given = [str(x) for x in (*given, "--share", 0.5, "--save", tmp_path / "saved")]
    found = ner.train_and_score(ner.parse(given))
    assert found["sentences"] == 1 and found["layer_weights"] == {}
    known = json.loads((tmp_path / "saved" / "known.json").read_text("utf-8"))
    assert len(known["words"]) == 5 and known["words"]["ada"] >= 2
    assert (
        known["tags"][:5] == ["O", "B-LOC", "I-LOC", "E-LOC", "S-LOC"] and len(known["tags"]) == 13
    )
    characters = 262 * 16 + (3 * 16 + 1) * 128
    lstms = 2 * 4 * (4 * (128 + 3 + 4 + 1) + 2 * (2 * 4 + 2 + 1))
    crf = 13 * (2 * 2 + 1) + 13 * (13 + 2)
    assert found["parameters"] == 3 * (2 + len(known["words"])) + characters + lstms + crf
