"""The experiments: batches, cached layers, word vectors, seeds, and the tables over all of them."""

import concurrent.futures
import functools
import importlib
import importlib.util
import itertools
import json
import lzma
import pathlib
import sys

import keras
import numpy as np
import pytest

import keras_elmo
from tests.conftest import make_arrays, make_config, numpy, slow, write_preset
from tests.example_runs import (
    COLUMNS,
    EXAMPLES,
    EXPERIMENTS,
    TOKENS,
    run,
    write_columns,
    write_trees,
)


@pytest.fixture
def experiments(monkeypatch):
    """A function that imports a module of the experiments."""
    for name in ("nltk", "seqeval", "matplotlib"):
        pytest.importorskip(name)
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.syspath_prepend(EXPERIMENTS)
    return importlib.import_module


@pytest.fixture
def sst5(experiments, tmp_path):
    """The module, and trees in the folder ``trees``."""
    write_trees(tmp_path / "trees")
    return experiments("sst5_runs")


@pytest.fixture
def ner(experiments):
    return experiments("ner_runs")


@pytest.fixture
def ablations(experiments):
    return experiments("ablations")


@pytest.fixture
def word_vectors(experiments):
    return experiments("word_vectors")


@pytest.fixture
def in_this_process(ablations, monkeypatch):
    """Runs of ablations.py without processes of their own."""

    class Pool(concurrent.futures.ThreadPoolExecutor):
        def __init__(self, jobs, context, max_tasks_per_child):
            assert max_tasks_per_child == 1
            super().__init__(1)

    monkeypatch.setattr(ablations.concurrent.futures, "ProcessPoolExecutor", Pool)


def test_batches(experiments):
    cached_layers = experiments("cached_layers")
    Batches, passes_per_epoch = cached_layers.Batches, cached_layers.passes_per_epoch
    lengths, chosen = [3, 1, 3, 2, 5, 3, 3, 9], [0, 1, 2, 4, 5, 6]
    batches = Batches(lambda indices, _: (indices, indices), lengths, chosen, 2, 1, passes=3)
    assert len(batches) == 9
    for _ in range(20):
        assert sorted(i for x in batches.indices for i in x) == sorted(3 * chosen)
        widths = [max(lengths[i] for i in x) for x in batches.indices]
        assert sorted(widths) == 6 * [3] + 3 * [5]
        before = [x.tolist() for x in batches.indices]
        batches.on_epoch_end()
        assert before != [x.tolist() for x in batches.indices]
    assert [passes_per_epoch(x) for x in (1, 0.5, 0.2, 0.05, 0.01)] == [1, 1, 2, 4, 10]


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


@slow
def test_sst5_cached_is_on_the_fly(sst5, tmp_path, preset):
    given = arguments(tmp_path, preset, "--quick", "--json", "--learning-rate", 0.05)
    printed = json.loads(run(EXPERIMENTS / "sst5_runs.py", *given, "--seeds", 1, 2))
    assert len(list((tmp_path / "cache").glob("*.hdf5"))) == 3
    cached, other = printed["runs"]
    assert cached["losses"] != other["losses"] and cached["epochs"] == 2
    assert len(cached["dev_by_epoch"]) == 2 and max(cached["dev_by_epoch"]) == cached["dev"]
    assert printed["dev"]["mean"] == pytest.approx((cached["dev"] + other["dev"]) / 2)
    fresh = sst5.train_and_score(sst5.parse([*given, "--on-the-fly"]), seed=1)
    assert (fresh["dev"], fresh["test"]) == (cached["dev"], cached["test"])
    assert fresh["parameters"] == cached["parameters"]
    np.testing.assert_allclose(fresh["losses"], cached["losses"], rtol=1e-3)
    for place in ("input", "output"):
        weights = cached["layer_weights"][place]
        assert max(weights) - min(weights) > 1e-3  # they were trained
        np.testing.assert_allclose(fresh["layer_weights"][place], weights, atol=1e-3)


@slow
def test_sst5_without_elmo_and_with_the_top_layer(sst5, tmp_path, preset):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("delight 1 2 3\nunseen 4 5 6\n")
    given = arguments(tmp_path, preset, "--elmo", "none", "--epochs", 1, "--vectors", vectors)
    out = run(EXPERIMENTS / "sst5_runs.py", *given)
    assert "dev accuracy" in out and "test accuracy" in out and not (tmp_path / "cache").exists()
    more = "--elmo", "input", "--layers", "top", "--l2", 1, "--share", 0.3, "--epochs", 1
    settings = sst5.parse(arguments(tmp_path, preset, *more))
    found = sst5.train_and_score(settings)
    assert found["layer_weights"] == {}
    words = {8: 4, 7: 4, 5: 3}[found["phrases"]]  # of the one tree that is drawn
    lstms = 2 * 4 * 4 * (5 + 12 + 4 + 1)
    assert found["parameters"] == 5 * (words + 2) + lstms + 5 * (2 * 2 * 4 + 1)


@pytest.mark.parametrize("name, layer", [("top", 2), ("token", 0)])
def test_one_layer_alone(sst5, experiments, name, layer, tmp_path, preset):
    settings = sst5.parse(arguments(tmp_path, preset, "--elmo", "input", "--layers", name))
    x = np.zeros((1, 2, 3), "float32")
    representations = np.random.default_rng(0).normal(size=(1, 2, 3, 8)).astype("float32")
    with_elmo, mixes = experiments("cached_layers").elmo_places(settings, representations, None)
    expected = np.concatenate([x, representations[:, :, layer]], axis=-1)
    np.testing.assert_array_equal(numpy(with_elmo(x, "input")), expected)
    assert with_elmo(x, "output") is x and mixes == {}


def alike(model, other, inputs, more_inputs):
    """Whether two models compute the same, once they have the same weights."""
    model.set_weights([x + 0.1 * np.random.normal(size=x.shape) for x in model.get_weights()])
    other.set_weights(model.get_weights())
    np.testing.assert_allclose(numpy(model(inputs)), numpy(other(more_inputs)), atol=1e-5)


def example(name):
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_ner_is_the_model_of_the_example(ner, word_vectors, preset):
    elmo = keras_elmo.ElmoLayer.from_preset(preset)
    settings = ner.parse([*(f"--{x}=x" for x in ("train", "dev", "test")), "--on-the-fly"])
    known = {"words": {"ada": 2}, "tags": ["O", "S-PER", "B-PER"], "max_characters": 50}
    here, _, _ = ner.build(settings, word_vectors.word_embedding(known["words"], 100), elmo, known)
    there = example("ner")
    words, characters = there.make_inputs(known, [["Ada"], ["Ada", "is", "here"]])
    inputs = {"words": words, "characters": characters}
    alike(here, there.build(known, elmo)[0], inputs, [words, characters])


def test_sst5_padding_changes_nothing(sst5, tmp_path, preset, word_vectors):
    settings = sst5.parse(arguments(tmp_path, preset, "--on-the-fly"))
    elmo = keras_elmo.ElmoLayer.from_preset(preset)
    model, _ = sst5.build(settings, word_vectors.word_embedding({"fine": 2}, 5), elmo)
    splits = [sst5.read_split(tmp_path / "trees", "test")]
    more = sst5.make_more_inputs(settings, elmo, splits)
    make = functools.partial(sst5.make_batch, {"fine": 2}, set(), more, splits[0])
    inputs, labels = make([0, 1], None)
    assert inputs["words"].tolist() == [[2, 0, 0, 0, 0], [1] * 5] and labels.tolist() == [3, 0]
    apart = [numpy(model(make([i], None)[0]))[0] for i in range(2)]
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


def found_by_a_run(places=()):
    weights = {place: [0.5, 0.25, 0.25] for place in places}
    found = {"dev": 0.5, "test": 0.5, "epochs": 1, "seconds_per_epoch": 1.0, "dev_by_epoch": [0.5]}
    return json.dumps({**found, "layer_weights": weights})


@slow
def test_ablations_run_what_is_missing(sst5, ablations, tmp_path, preset, capfd):
    given = arguments(tmp_path, preset, "--quick")
    results = tmp_path / "results"
    runs = ablations.Runs("sst5", given, results / "runs")
    runs.path(ablations.ELMO, 1).write_text(found_by_a_run())
    before = runs.path(ablations.ELMO, 1).stat().st_mtime_ns

    def tables(*more):
        ablations.main(["sst5", str(results), "--only", "gain", *more, *given])
        return capfd.readouterr().out

    first = tables("--jobs", "2")
    baseline = runs.path(ablations.BASELINE, 1)
    assert {file.suffix for file in (results / "runs").iterdir()} == {".json"}
    assert "| baseline |" in first and "| +ELMo |" in first and first.count("| 1 |") == 2
    baseline.unlink()
    assert tables() == first and baseline.exists()
    assert before == runs.path(ablations.ELMO, 1).stat().st_mtime_ns


@pytest.fixture
def fake(sst5, ablations, tmp_path, preset):
    """The command line, and a function that writes what a run with two seeds would find."""
    given = arguments(tmp_path, preset, "--seeds", 1, 2)
    runs = ablations.Runs("sst5", given, tmp_path / "results" / "runs")

    def write(changes, seed, score, by_epoch=()):
        elmo = changes.get("elmo", "both")
        places = {"both": ["input", "output"], "none": []}.get(elmo, [elmo])
        weights = {place: [0.5, 0.1 + 0.1 * seed, 0.4 - 0.1 * seed] for place in places}
        found = {"dev": score, "test": score, "epochs": 1, "seconds_per_epoch": 1.0}
        found |= {"layer_weights": weights, "dev_by_epoch": list(by_epoch) or [score]}
        runs.path(changes, seed).write_text(json.dumps(found))

    return ["sst5", str(tmp_path / "results"), *given], write


def trials(ablations):
    for values in itertools.product(*ablations.TRIALS.values()):
        yield dict(zip(ablations.TRIALS, values))


def test_ablations_tables(ablations, fake, tmp_path, capsys):
    (task, results, *given), write = fake
    best = {"dropout": 0.3, "learning_rate": 2e-3}
    small = {"dropout": 0.7, "learning_rate": 1e-3}  # best for 1% of the data, without ELMo
    for share in (0.01, 0.05, 0.2):
        for side in (ablations.BASELINE, ablations.ELMO):
            for trial in trials(ablations):
                good = small if share == 0.01 and side else best
                for seed in (1, 2):
                    score = (0.3 if side else 0.4) + 0.02 * (seed - 1)
                    write({**side, **trial, "share": share}, seed, score - 0.1 * (trial != good))
    sizes = ablations.rows_of_shares([1.0])
    for rows in (*ablations.TABLES.values(), sizes):
        for changes in rows.values():
            for seed in (1, 2):
                without = 0.3 if changes.get("elmo") == "none" else 0.4
                write({**best, **changes}, seed, without + 0.02 * (seed - 1))
    folder = tmp_path / "results" / "runs"
    made = len(list(folder.iterdir()))
    assert made == 3 * 2 * 6 * 2 + 2 * 7  # 7 at full size for each seed
    ablations.main([task, results, "--search", *given])
    assert made == len(list(folder.iterdir()))  # nothing was missing
    out = capsys.readouterr().out
    assert "| 20%, baseline, dropout 0.3, learning_rate 0.002 | 31.00 ± 1.41 |" in out
    assert "| 1%, baseline, dropout 0.3, learning_rate 0.002 | 21.00 ± 1.41 |" in out
    assert "| baseline | 31.00 ± 1.41 | 31.00 ± 1.41 |  | 2 |" in out
    assert "| all layers, lambda 1 | 41.00 ± 1.41 | 41.00 ± 1.41 | +10.00 | 2 |" in out
    for share in ("1%", "5%", "20%", "100%"):
        assert f"| {share}, +ELMo | 41.00 ± 1.41 | 41.00 ± 1.41 | +10.00 | 2 |" in out
    assert "| layer 0 alone | 41.00 ± 1.41 | 41.00 ± 1.41 | +10.00 | 2 |" in out
    assert "No row of word vectors of the same text in controls: --corpus names no text" in out
    assert "at the output (both), from layer 0: 0.500 ± 0.000, 0.250 ± 0.071, 0.250 ± 0.071" in out
    facts = json.loads((tmp_path / "results" / "tables.json").read_text())
    both = {"baseline": best, "+ELMo": best}
    few = {"baseline": small, "+ELMo": best}
    assert facts["settings"] == {"1%": few, "5%": both, "20%": both, ablations.REST: both}
    assert facts["tables"]["gain"]["+ELMo"]["test"]["mean"] == pytest.approx(0.41)
    for name in ("sizes.png", "weights.png", "curves.png"):
        assert (tmp_path / "results" / name).read_bytes().startswith(b"\x89PNG")


def test_ablations_search_with_some_of_the_seeds(ablations, fake, tmp_path, capsys):
    (task, results, *given), write = fake
    best = {"dropout": 0.7, "learning_rate": 1e-3}
    for side in (ablations.BASELINE, ablations.ELMO):
        for trial in trials(ablations):
            write({**side, **trial, "share": 1.0}, 1, 0.5 if trial == best else 0.1)
        write({**side, **best, "share": 1.0}, 2, 0.3)
    made = len(list((tmp_path / "results" / "runs").iterdir()))
    search = ["--search", "--search-share", "1", "--search-seeds", "1", "--only", "gain"]
    ablations.main([task, results, *search, *given])
    assert made == 2 * 6 + 2 == len(list((tmp_path / "results" / "runs").iterdir()))
    out = capsys.readouterr().out
    assert "| 100%, +ELMo, dropout 0.7, learning_rate 0.001 | 50.00 ± 0.00 |" in out
    assert "| +ELMo | 40.00 ± 14.14 | 40.00 ± 14.14 | +0.00 | 2 |" in out


def test_ablations_curves(ablations, fake, tmp_path, capsys):
    (task, results, *given), write = fake
    for seed, without, elmo in [
        (1, [0.1, 0.3, 0.2], [0.2, 0.3, 0.5, 0.4]),
        (2, [0.4, 0.1], [0.3, 0.4]),
    ]:
        write(ablations.BASELINE, seed, max(without), without)
        write(ablations.ELMO, seed, max(elmo), elmo)
    ablations.main([task, results, "--only", "curves", *given])
    out = capsys.readouterr().out
    assert "+ELMo passes the baseline's best, of epoch 2, in epoch 3.\n" in out
    assert "+ELMo passes the baseline's best, of epoch 1, in no epoch.\n" in out
    facts = json.loads((tmp_path / "results" / "tables.json").read_text())
    assert facts["epochs_to_pass"] == [[2, 3], [1, None]]
    curves = facts["tables"]["curves"]
    assert curves["+ELMo"]["dev_by_epoch"] == [[0.2, 0.3, 0.5, 0.4], [0.3, 0.4]]


def test_ablations_leave_the_share_to_the_task(sst5, ablations, tmp_path, preset):
    given = arguments(tmp_path, preset, "--share", 0.5)
    runs = ablations.Runs("sst5", given, tmp_path / "results" / "runs")
    for changes in (ablations.BASELINE, ablations.ELMO):
        runs.path(changes, 1).write_text(found_by_a_run())
    ablations.main(["sst5", str(tmp_path / "results"), "--only", "gain", *given])
    assert len(list(runs.folder.iterdir())) == 2
    assert "--share" in json.loads((tmp_path / "results" / "tables.json").read_text())["arguments"]


CORPUS = 6 * "A delight is FINE\nNot fine at all\n"


def test_ablations_controls(
    sst5, ablations, in_this_process, tmp_path, preset, capsys, monkeypatch
):
    pytest.importorskip("gensim", reason="gensim trains the word vectors")
    (tmp_path / "corpus.txt").write_text(CORPUS)
    given = arguments(tmp_path, preset, "--quick")
    results = tmp_path / "results"
    runs = ablations.Runs("sst5", given, results / "runs")
    for changes in ablations.TABLES["controls"].values():
        runs.path(changes, 1).write_text(found_by_a_run())
    command = ["sst5", str(results), "--only", "controls", "--corpus", str(tmp_path / "corpus.txt")]
    ablations.main([*command, *given])
    out = capsys.readouterr().out
    assert "| layer 0 alone | 50.00 ± 0.00 | 50.00 ± 0.00 | +0.00 | 1 |" in out
    assert "| word vectors of the same text |" in out and "No row" not in out
    assert "| word vectors of the same text, +ELMo |" in out
    [vectors] = results.glob("word2vec-5-*.txt")
    found = [json.loads(path.read_text()) for path in (results / "runs").iterdir()]
    found = [x for x in found if "vectors" in x.get("settings", {})]
    assert {x["settings"]["vectors"] for x in found} == {str(vectors)}
    assert sorted(x["settings"]["elmo"] for x in found) == ["both", "none"]
    assert {x["epochs"] for x in found} == {2}
    # The runs are found again under another path of the vectors, and not with others.
    elsewhere, others = tmp_path / "moved" / vectors.name, tmp_path / "others.txt"
    assert runs.path({"vectors": str(elsewhere)}, 1).exists()
    assert not runs.path({"vectors": str(others)}, 1).exists()
    before = vectors.stat().st_mtime_ns
    ablations.main([*command, *given])
    assert before == vectors.stat().st_mtime_ns and len(list(results.glob("word2vec-*"))) == 1
    (tmp_path / "corpus.txt").write_text(CORPUS * 2)  # another text, other vectors
    monkeypatch.setattr(
        ablations.Runs, "run", lambda self, *run: self.path(*run).write_text(found_by_a_run())
    )
    ablations.main([*command, *given])
    assert before == vectors.stat().st_mtime_ns and len(list(results.glob("word2vec-*"))) == 2


def test_ablations_controls_without_gensim(sst5, ablations, tmp_path, preset, capsys, monkeypatch):
    monkeypatch.setattr(ablations.importlib.util, "find_spec", lambda name: None)
    given = arguments(tmp_path, preset)
    runs = ablations.Runs("sst5", given, tmp_path / "results" / "runs")
    for changes in ablations.TABLES["controls"].values():
        runs.path(changes, 1).write_text(found_by_a_run())
    more = "--only", "controls", "--corpus", str(tmp_path / "corpus.txt")
    ablations.main(["sst5", str(tmp_path / "results"), *more, *given])
    assert "in controls: gensim, which trains them, is not installed." in capsys.readouterr().out
    assert "is not installed" in (tmp_path / "results" / "tables.md").read_text("utf-8")


def test_train_vectors(word_vectors, tmp_path):
    pytest.importorskip("gensim", reason="gensim trains the word vectors")
    (tmp_path / "corpus.txt").write_text(CORPUS)
    given = [EXPERIMENTS / "train_vectors.py", tmp_path / "vectors.txt", tmp_path / "corpus.txt"]
    assert run(*given, "--dimension", 7).startswith("7 vectors of 7 numbers in ")
    text = (tmp_path / "vectors.txt").read_text()
    vectors = word_vectors.read_vectors(tmp_path / "vectors.txt", ["Fine", "not", "absent"])
    assert list(vectors) == ["Fine", "not"] and vectors["not"].shape == (7,)
    assert run(*given, "--dimension", 7) and (tmp_path / "vectors.txt").read_text() == text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.txt", "vectors.txt"]
    with pytest.raises(ValueError, match="words that occur 99 times or more. Received: files="):
        run(*given, "--min-count", 99)


def test_train_vectors_names_the_extra(experiments, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    with pytest.raises(ImportError, match=r"by gensim: pip install .keras-elmo\[examples\]"):
        experiments("train_vectors").train_vectors(tmp_path / "vectors.txt", [])


def test_ner_reads_columns(experiments, tmp_path):
    ner = experiments("conll")
    tokens = [sentence.split() for sentence in TOKENS.split(" | ")]
    tags = [sentence.split() for sentence in COLUMNS["BIOES"].split(" | ")]
    for scheme in COLUMNS:
        path = write_columns(tmp_path / scheme, scheme)
        assert ner.read_columns(path) == (tokens, tags)
        assert ner.read_columns(path, limit=1) == (tokens[:1], tags[:1])
    path = write_columns(tmp_path / "tabs", "IOB1", "{}\tNN\t{}\tx y\r\n")
    path.write_text(path.read_text("utf-8").removesuffix("\n"), "utf-8")
    assert ner.read_columns(path, tag_column=3) == (tokens, tags)
    universal = write_columns(tmp_path / "universal", "IOB2", "1\t{}\t{}\t-\n")
    text = universal.read_text("utf-8").split("\n", 3)[3]
    universal.write_text("# newdoc id = a b\n" + text.replace("\n\n", "\n\n# text = x y z\n", 1))
    assert ner.read_columns(universal, tag_column=3) == (tokens, tags)
    universal.write_text("-DOCSTART- O\n\nA\tO\n", "utf-8-sig")
    assert ner.read_columns(universal) == ([["A"]], [["O"]])
    back = [ner.recode(sentence, ner.IOB2) for sentence in tags]
    assert [" ".join(sentence) for sentence in back] == COLUMNS["IOB2"].split(" | ")
    long = ["O", "B-creative-work", "I-creative-work", "E-creative-work", "I-a"]
    assert ner.recode(ner.recode(long, ner.IOB2), ner.BIOES) == [*long[:4], "S-a"]
    written = ner.columns(tokens[:1], tags[:1], back[:1])
    assert written.startswith("Ada B-PER B-PER\nLovelace E-PER I-PER\n")
    assert written.endswith("Paris S-LOC B-LOC\n\n")


@slow
def test_ner_trains_and_caches(ner, tmp_path, preset):
    file = write_columns(tmp_path / "all.conll", "IOB1")
    given = [f"--{name}={file}" for name in ("train", "dev", "test")]
    given += "--preset", preset, "--cache", tmp_path / "cache", "--predictions", tmp_path
    given += "--elmo", "both", "--units", 16, "--dimension", 5, "--learning-rate", 0.03
    given = [str(x) for x in (*given, "--dropout", 0.1, "--batch-size", 1)]
    printed = run(EXPERIMENTS / "ner_runs.py", *given, "--on-the-fly", "--quick", "--json")
    [on_the_fly] = json.loads(printed)["runs"]
    assert not (tmp_path / "cache").exists()

    more = "--epochs", "40", "--patience", "40"
    found = ner.train_and_score(ner.parse([*given, *more]))
    assert len(list((tmp_path / "cache").glob("*.hdf5"))) == 3
    assert found["dev"] == found["test"] == 1 and found["sentences"] == 2
    assert len(found["dev_by_epoch"]) == 40 and max(found["dev_by_epoch"]) == 1
    assert found["epochs"] == 40 and on_the_fly["epochs"] == 2
    np.testing.assert_allclose(found["losses"][:2], on_the_fly["losses"], rtol=1e-3)
    assert found["parameters"] == on_the_fly["parameters"]
    assert set(found["layer_weights"]) == {"input", "output"}

    gold = write_columns(tmp_path / "gold", "IOB2", "{0} {1} {1}\n").read_text("utf-8")
    assert (tmp_path / "test-1.conll").read_text("utf-8") == gold.removeprefix("-DOCSTART- O\n\n\n")


@slow
def test_ablations_of_ner(ablations, in_this_process, tmp_path, preset, capsys):
    file = write_columns(tmp_path / "all.conll", "IOB1")
    given = [f"--{name}={file}" for name in ("train", "dev", "test")]
    given += "--preset", preset, "--cache", tmp_path / "cache", "--units", 4, "--dimension", 5
    given = [str(x) for x in (*given, "--quick")]
    runs = ablations.Runs("ner", given, tmp_path / "results" / "runs")
    for changes in (ablations.BASELINE, ablations.ELMO):
        runs.path(changes, 1).write_text(found_by_a_run(["input"] if not changes else []))
    ablations.main(["ner", str(tmp_path / "results"), *given, "--only", "gain", "weights"])
    out = capsys.readouterr().out
    assert len(list((tmp_path / "cache").glob("*.hdf5"))) == 3
    assert "| gain | dev F1 | test F1 | gain | runs |" in out
    assert "Layer weights at the input (both), from layer 0: 0.3" in out
    before = runs.path({}, 1), runs.path(ablations.BASELINE, 1)
    arrays = make_arrays(make_config(max_characters_per_token=50), seed=1)
    write_preset(tmp_path / "preset", make_config(max_characters_per_token=50), arrays)
    ablations.fingerprint.cache_clear()
    assert runs.path({}, 1) != before[0] and runs.path(ablations.BASELINE, 1) == before[1]


@slow
def test_ner_without_elmo(ner, tmp_path, monkeypatch):
    file = write_columns(tmp_path / "all.conll", "IOB2")
    (tmp_path / "vectors.txt").write_text("ada 1 2 3\n")
    given = [f"--{name}={file}" for name in ("train", "dev", "test")]
    given += "--elmo", "none", "--vectors", tmp_path / "vectors.txt", "--units", 4, "--quick"
    given = [str(x) for x in (*given, "--share", 0.5)]
    built = []
    build = ner.build
    monkeypatch.setattr(ner, "build", lambda *x: built.append(x) or build(*x))
    found = ner.train_and_score(ner.parse(given))
    assert found["sentences"] == 1 and found["layer_weights"] == {}
    [(_, _, _, known)] = built
    assert len(known["words"]) == 5 and known["words"]["ada"] >= 2
    assert (
        known["tags"][:5] == ["O", "B-LOC", "I-LOC", "E-LOC", "S-LOC"] and len(known["tags"]) == 13
    )
    characters = 262 * 16 + (3 * 16 + 1) * 128
    lstms = 2 * 4 * (4 * (128 + 3 + 4 + 1) + 2 * (2 * 4 + 2 + 1))
    crf = 13 * (2 * 2 + 1) + 13 * (13 + 2)
    assert found["parameters"] == 3 * (2 + len(known["words"])) + characters + lstms + crf


def write_runs(folder, name, side, scores):
    folder.mkdir(exist_ok=True)
    for seed, score in enumerate(scores, start=1):
        weights = {"at_input": [score, 1 - score]} if side == "elmo" else {}
        facts = {"options": ["--epochs", "6"], "seconds": 1, "test": score}
        facts |= {"layer_weights": weights, "bilm": f"{seed}{'f' * 63}" if weights else None}
        (folder / f"{name}-{side}-{seed}.json").write_text(json.dumps(facts))


def test_table1_prints_the_finished_runs(experiments, tmp_path):
    table1 = experiments("table1")
    write_runs(tmp_path, "ner", "baseline", [0.5, 0.6])
    write_runs(tmp_path, "ner", "elmo", [0.64])
    lines = table1.to_markdown(tmp_path).splitlines()
    [row] = [line for line in lines if line.startswith("| CoNLL")]
    paper = "CoNLL-2003 | 90.15 | 92.22 | +2.07 / 21.0% |"
    assert row == f"| CoNLL-2003, F1 | 55.00 ± 7.07 | 64.00 | +9.00 / 20.0% | 2, 1 | {paper}"
    assert "| SICK, accuracy | not run | not run |  | 0, 0 | SNLI |" in "\n".join(lines)
    assert lines[-1] == "- CoNLL-2003, F1: `ner.py --epochs 6`, biLM `1fffffff`"
    write_runs(tmp_path, "ner", "elmo", [0.64, 0.65])  # the second with other weights
    assert table1.to_markdown(tmp_path).count("`ner.py --epochs 6`, biLM `") == 2


def test_table1_draws_the_mean_weights_of_each_mix(experiments, tmp_path):
    pytest.importorskip("matplotlib")
    write_runs(tmp_path, "ner", "elmo", [0.4, 0.6])
    write_runs(tmp_path, "sst5", "elmo", [0.7])
    rows = {row: x.tolist() for row, x in experiments("table1").weights_of(tmp_path).items()}
    assert rows == {"CoNLL-2003, input": [0.5, 0.5], "SST-5, input": [0.7, pytest.approx(0.3)]}
    experiments("table1").main([f"--results={tmp_path}", f"--plot={tmp_path / 'weights.png'}"])
    assert (tmp_path / "weights.png").read_bytes().startswith(b"\x89PNG")


def test_table1_runs_what_is_missing(experiments, tmp_path, monkeypatch):
    table1 = experiments("table1")
    (tmp_path / "sick").mkdir()
    for name in table1.TSV:
        (tmp_path / f"sick/{name}.xz").write_bytes(lzma.compress(name.encode()))
    commands, digests = [], ["first weights"]

    def example(command, check):
        file = pathlib.Path(command[command.index("--scores") + 1])
        vectors = command[command.index("--vectors") + 1]
        file.write_text(json.dumps({"test": len(commands) / 10, "settings": {"vectors": vectors}}))
        commands.append(command)
        assert pathlib.Path(command[command.index("--dev") + 1]).read_text() == "dev.tsv"

    monkeypatch.setattr(table1.subprocess, "run", example)
    monkeypatch.setattr(table1, "fingerprint", lambda preset: digests[-1])
    given = [f"--data={tmp_path}", "--vectors=v.txt", f"--cache={tmp_path / 'cache'}"]
    given += [f"--results={tmp_path / 'found'}", "--tasks", "entailment", "--seeds", "1", "2"]
    table1.main(given)
    assert len(commands) == 4
    assert ["--no-elmo" in x for x in commands] == ["--cache" not in x for x in commands]
    assert sum("--no-elmo" in x for x in commands) == 2
    (tmp_path / "found/entailment-elmo-2.json").unlink()
    table1.main(given)
    assert len(commands) == 5 and "--preset" in commands[-1] and commands[-1][-1].endswith(".tmp")
    assert not list((tmp_path / "found").glob("*.tmp"))
    table1.main([*given, "--vectors=other.txt"])
    assert len(commands) == 9
    digests.append("new weights under the same name")
    table1.main([*given, "--vectors=other.txt"])
    assert len(commands) == 11 and "--preset" in commands[-2] and "--preset" in commands[-1]
    with pytest.raises(SystemExit):
        table1.main(["--data", "x"])


def test_the_page_has_the_table_of_the_results(experiments):
    page = (EXAMPLES.parent / "docs/table1.md").read_text("utf-8")
    assert experiments("table1").to_markdown(EXPERIMENTS / "results/table1") in page


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


def test_the_results_page_has_the_scores_of_the_stored_runs(experiments):
    page = (EXAMPLES.parent / "docs/results.md").read_text("utf-8")
    scores, sides = {}, {}
    for path in sorted((EXPERIMENTS / "results").glob("*/runs/*.json")):
        run = json.loads(path.read_text())
        scores.setdefault((path.parent, path.stem.rpartition("-")[0]), []).append(100 * run["test"])
        settings = run["settings"]
        if settings["layers"] == "all" and not settings["vectors"]:
            row = sides.setdefault((path.parent, settings["share"]), {})
            row.setdefault(settings["elmo"] == "none", []).append(100 * run["test"])
    shown = experiments("table1").shown
    assert len(scores) > 15 and {len(seeds) for seeds in scores.values()} == {3}
    assert not [settings for settings, seeds in scores.items() if shown(seeds) not in page]
    for row in sides.values():
        baseline, elmo = (shown(row[is_baseline]) for is_baseline in (True, False))
        gain = f"{np.mean(row[False]) - np.mean(row[True]):+.2f} |"
        in_row = [x for x in page.splitlines() if f"| {baseline} |" in x and gain in x]
        assert any(elmo in line for line in in_row), (baseline, elmo, gain)
