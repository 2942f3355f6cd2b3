"""Every example runs once to its end and reads the standard formats, on small files."""

import argparse
import json
import lzma

import keras
import numpy as np
import pytest

import keras_elmo
from keras_elmo.alphabets import SPECIAL_CHARACTERS, SPECIAL_WORDS, CodePoints
from tests.conftest import make_config, numpy
from tests.example_runs import EXAMPLES, run, write_trees

pytestmark = pytest.mark.extended


@pytest.fixture
def vectors(tmp_path):
    """A word2vec text file."""
    (tmp_path / "vectors.txt").write_text("3 2\nfine 1 2\nada 2 1\na 0 0.5\n")
    return tmp_path / "vectors.txt"


# Files of the task models.

PAIRS = [
    ("E", 'A dog "barks" .', "An animal barks ."),
    ("N", "A dog barks .", "It rains ."),
    ("C", "A dog barks .", "No dog barks at all ."),
]
ROLES = """
Ada 0 B-A0
sold 1 B-V
her 0 B-A1
engine 0 I-A1
. 0 O

Ada 0 O
sold 0 O
her 1 B-A0
engine 0 B-V
. 0 O
"""
GAP = "ID Text Pronoun Pronoun-offset A A-offset A-coref B B-offset B-coref URL\n" + (
    "1 Ada~Lovelace~met~``Mary''.~She~left. She 27 Ada~Lovelace 0 TRUE Mary 19 FALSE u\n"
    "2 Bob~saw~Al;~his~cat~sat. his 12 Bob 0 FALSE Al 8 TRUE u\n"
)
PROTEINS = "a\tACDX\tHHEC\t1101\n" + 3 * "b\tMKV\tECC\t111\n"


def write_pairs(path, form="{}\t{}\t{}\n", pairs=PAIRS, header=""):
    path.write_text(header + "".join(form.format(*pair) for pair in pairs), "utf-8")
    return path


def write_gap(folder):
    folder.mkdir()
    for name in ("development", "validation", "test"):
        (folder / f"gap-{name}.tsv").write_text(GAP.replace(" ", "\t").replace("~", " "), "utf-8")
    return folder


def write_squad(path, *answers):
    """Write three articles, four passages with a question each."""
    paragraphs = []
    for n, name in enumerate(("Ada", "Bob", "Cy", "Di")):
        text = f"The {name}, who left. Then" + n * " all" + "."
        found = [{"answer_start": text.index(x), "text": x} for x in (answers or [name, name])]
        question = {"id": f"{n}", "question": "Who left?", "answers": found}
        paragraphs.append({"context": text, "qas": [question]})
    articles = [{"paragraphs": some} for some in (paragraphs[:2], *zip(paragraphs[2:]))]
    path.write_text(json.dumps({"version": "1.1", "data": articles}))
    return path


def write_proteins(folder):
    folder.mkdir()
    for name in ("train", "dev", "test"):
        with lzma.open(folder / f"secondary_structure_{name}.tsv.xz", "wt") as file:
            file.write(PROTEINS)
    return folder


def splits(file):
    return "--train", file, "--dev", file, "--test", file


def arguments_of(name, folder, vectors):
    """Write the data of a task model, and return its arguments."""
    if name == "proteins":
        return "--data", write_proteins(folder / "data"), "--units", 4
    words = "--vectors", vectors
    if name == "sst5":
        return *words, "--data", write_trees(folder / "trees"), "--units", 4, "--shortest", 2
    if name == "entailment":
        return *words, *splits(write_pairs(folder / "pairs.tsv")), "--cache", folder / "cache"
    if name == "srl":
        (folder / "roles.conll").write_text(ROLES)
        return *words, *splits(folder / "roles.conll"), "--units", 4, "--depth", 1
    if name == "coreference":
        return *words, "--data", write_gap(folder / "gap"), "--units", 4
    file = write_squad(folder / "squad.json")
    return *words, "--train", file, "--test", file, "--units", 4


@pytest.mark.parametrize(
    "name", ["sst5", "entailment", "srl", "coreference", "questions", "proteins"]
)
def test_a_task_model(name, load, tmp_path, preset, vectors, eager):
    given = *arguments_of(name, tmp_path, vectors), "--epochs", 2
    scores = tmp_path / "scores.json"
    out = run(EXAMPLES / f"{name}.py", *given, "--scores", scores, "--preset", preset)
    written = json.loads(scores.read_text("utf-8"))
    dev, test = (100 * written[name] for name in ("dev", "test"))
    assert out.splitlines()[-1] == f"dev {dev:.1f} test {test:.1f}" and 0 <= test <= 100
    both = name in ("sst5", "entailment", "questions")
    assert set(written["layer_weights"]) == {"at_input", *(["at_output"] if both else [])}
    assert all(len(weights) == 3 for weights in written["layer_weights"].values())
    measure = {"sst5": "accuracy", "entailment": "accuracy", "proteins": "Q3"}.get(name, "F1")
    assert f", dev {measure} " in out


def test_quickstart(load, tmp_path, preset, eager):
    trees = write_trees(tmp_path / "trees") / "train.txt"
    given = "--data", trees, "--limit", 2, "--preset", preset, "--epochs", 1
    out = run(EXAMPLES / "quickstart.py", *given)
    assert "on 2 sentences" in out and "classes of two new sentences" in out


def test_input_and_output(preset):
    out = run(EXAMPLES / "input_and_output.py", "--preset", preset, "--epochs", 20)
    before, after = (float(x) for x in out.splitlines()[0].removeprefix("loss ").split(" -> "))
    assert after < before / 2
    assert "at_input" in out and "at_output" in out and "Ada/NAME" in out


def test_sentiment(load, tmp_path, preset, eager):
    reviews = {
        "train": "1\t배우 가 좋 다 !\n0\t시간 이 아깝 다 .\n" * 10,
        "dev": "1\t재미 있 다\n\n0\t지루 하 다\n1\t \n",
        "test": "0\t시간 이 아깝 다 ...\r\n1\t처음 보 는 좋 은 영화\n0\tA",
    }
    for name, text in reviews.items():
        (tmp_path / f"{name}.tsv").write_text(text, "utf-8", newline="")
    _, labels = load("sentiment").read_reviews(tmp_path / "dev.tsv", str.split)
    assert labels == [1, 0]  # a review without a token is left out
    given = "--data", tmp_path, "--tokenizer", "whitespace", "--epochs", 1, "--batch-size", 8
    out = run(EXAMPLES / "sentiment.py", *given, "--preset", preset, "--share", 0.5, 1)
    assert out.count("test accuracy") == 4
    last = out.splitlines()[-1]
    assert last.startswith("share 1: baseline 0.") and ", with ELMo 0." in last


# Readers.


def test_trees(load, tmp_path):
    sst5 = load("sst5")
    trees = sst5.read_trees(write_trees(tmp_path / "trees") / "train.txt")
    labelled = dict(sst5.plain(node) for tree in trees for node in tree.subtrees())
    assert labelled["absolute", '"', "delight", '"'] == 4
    assert labelled["(", "Not", "delight", ")"] == 0 and labelled["either/or",] == 2
    assert len(trees) == 3 and len(labelled) == 9 + 7 - 1 + 5 - 1


def test_pairs(load, tmp_path):
    """As in our files, SICK and SNLI."""
    sick = "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\n"
    snli = "gold_label\tsentence1_parse\tsentence1\tsentence2\tcaptionID\n"
    for header, form, more in (
        ("", "{}\t{}\t{}\n", []),
        (sick, "7\t{1}\t{2}\t{0}\t4.5\r\n", []),
        (snli, "{0}\t( ( A ) )\t{1}\t{2}\t3#1\n\n", [("-", "No one", "agreed")]),
    ):
        path = write_pairs(tmp_path / "pairs.tsv", form, [*more, *PAIRS], header)
        pairs, labels = load("entailment").read_pairs(path)
        assert labels == ["E", "N", "C"]
        assert [" ".join(x) for x in pairs[0]] == ['A dog " barks " .', "An animal barks ."]


def test_roles(load, tmp_path):
    path = tmp_path / "roles.conll"
    for text in (ROLES, ROLES.replace(" ", "\t").replace("\n", "\r\n"), "# 1 text\n" + ROLES):
        path.write_text("-DOCSTART- 0 O\n" + text)
        frames, tags = load("srl").read_frames(path)
        assert frames[0] == list(zip("Ada sold her engine .".split(), [0, 1, 0, 0, 0]))
        assert [flag for _, flag in frames[1]] == [0, 0, 1, 0, 0]
        assert tags == ["B-A0 B-V B-A1 I-A1 O".split(), "O O B-A0 B-V O".split()]


def test_gap(load, tmp_path):
    one, two = load("coreference").read_gap(write_gap(tmp_path / "gap") / "gap-test.tsv")
    marked = [[x for x, m in zip(one["tokens"], column) if m] for column in one["mentions"].T]
    assert marked == [["She"], ["Ada", "Lovelace"], ["Mary"]]
    assert (one["label"], one["feminine"], two["label"], two["feminine"]) == (1, True, 2, False)


def test_squad(load, tmp_path):
    read = load("questions").read_squad
    examples = read(write_squad(tmp_path / "squad.json"))
    assert [x["context"][x["start"]] for x in examples] == ["Ada", "Bob", "Cy", "Di"]
    assert [x["article"] for x in examples] == [0, 0, 1, 2]
    for answer, span in (("who left", (3, 4)), ("left", (4, 4))):  # it ends before the full stop
        found = read(write_squad(tmp_path / "squad.json", answer))[0]
        assert (found["start"], found["end"]) == span


def test_proteins(load, tmp_path, eager):
    """Their readers, and a biLM of their letters."""
    data = write_proteins(tmp_path / "data")
    read = load("proteins").read_proteins
    sequences, labels = read(data / "secondary_structure_dev.tsv.xz", 2)
    assert sequences == [["A", "C", "D", "X"], ["M", "K", "V"]]
    assert [x.tolist() for x in labels] == [[0, 0, -1, 2], [1, 2, 2]]
    given = "--data", data, "--units", 4, "--epochs", 1
    out = run(EXAMPLES / "proteins.py", *given, "--run", tmp_path / "run", "--run-epochs", 1)
    assert (tmp_path / "run/preset/weights.hdf5").exists() and "dev " in out


# Models.


KNOWN = {"words": {"ada": 2}, "tags": ["O", "S-A0", "B-A0"]}
MODELS = {
    "sst5": lambda script, elmo: script.build(keras.layers.Embedding(3, 5), elmo, units=4),
    "entailment": lambda script, elmo: script.build(KNOWN["words"], 2, elmo, "both"),
    "srl": lambda script, elmo: script.build(KNOWN, elmo, 5, 1)[0],
    "ner": lambda script, elmo: script.build(KNOWN, elmo)[0],
    "coreference": lambda script, elmo: script.build(
        keras.layers.Embedding(3, 5), elmo.shape[1:], 6
    ),
    "questions": lambda script, elmo: script.build(
        keras.layers.Embedding(3, 5), elmo.shape[1:], 6, 0.1
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_padding_changes_nothing(name, load, preset, tmp_path):
    keras.utils.set_random_seed(1)
    elmo = load("cached_layers").open_elmo(preset, [["a"]], tmp_path)
    model, random = MODELS[name](load(name), elmo), np.random.default_rng(0)
    for weight in model.trainable_variables:  # the CRF begins with zeros
        weight.assign(weight + 0.1 * random.normal(size=weight.shape))

    def make(x):
        shape = 1, 5, *x.shape[2:]
        return np.ones(shape, "int32") if x.dtype == "int32" else random.uniform(0.1, 1, shape)

    def pad(x):
        return np.pad(x, [(0, 0), (0, 2), *[(0, 0)] * (x.ndim - 2)])

    inputs = keras.tree.map_structure(make, model.input)
    expected = keras.tree.flatten(keras.tree.map_structure(numpy, model(inputs)))
    found = keras.tree.flatten(model(keras.tree.map_structure(pad, inputs)))
    for one, padded in zip(expected, map(numpy, found), strict=True):
        np.testing.assert_allclose(padded[:, : one.shape[1]], one, atol=1e-4)
        assert np.std(one) > 1e-4
        if name == "questions":  # No answer begins or ends in the padding.
            assert (padded[:, 5:] < -5000).all()


def test_srl_leaves_the_predicate_out_of_its_score(load, monkeypatch):
    srl = load("srl")
    tags = [["S-A0", "S-V", "O"], ["O", "S-V", "S-A1"]]
    found = [["S-A0", "O", "O"], ["S-V", "S-V", "O"]]
    monkeypatch.setattr(srl.ner, "tag", lambda *_: found)
    assert srl.score(None, None, None, tags) == pytest.approx(2 / 3)  # 1 of 1 found, 1 of 2 there


def test_coreference_scores_pairs_as_gap_does(load):
    rows = [{"label": n, "feminine": n == 1} for n in (1, 2, 0, 1)]
    found = load("coreference").measures(rows, [np.int64(x) for x in (1, 1, 2, 0)])
    # Masculine: none of one true pair and of two found. Feminine: one of two true, one found.
    assert found["f1"] == pytest.approx(2 / 6) and found["masculine"] == 0
    assert found["feminine"] == pytest.approx(2 / 3) and found["bias"] > 1


def test_questions_scores_as_squad_does(load):
    questions = load("questions")
    assert questions.compare("The  Ada!", ["x", "ada"]).tolist() == [1, 1]
    assert questions.compare("Ada Lovelace", ["Lovelace of London"]) == pytest.approx([0.4, 0])
    assert questions.compare("the", ["Ada"]).tolist() == [0, 0]
    start, end = np.zeros(40), np.zeros(40)
    start[[2, 30]], end[[1, 35, 39]] = 9, 8
    assert questions.best_span(start, end, 38) == (30, 35)
    assert questions.best_span(start, end, 30)[0] == 2  # the best span does not end before it
    start, end = 9 * np.eye(20)[0], np.eye(20)[14] + 9 * np.eye(20)[15]
    assert questions.best_span(start, end, 20) == (0, 14)  # 15 tokens, and not 16


def test_questions_are_split_by_article(load):
    split, examples = load("questions").splits, [{"article": n} for n in (0, 0, 1, 2, 10)]
    folds = list(split(examples, 5, 3))
    assert folds[0] == ([3], [2, 4], [0, 1]) and folds[1] == ([0, 1], [3], [2, 4])
    assert sorted(i for _, _, tested in folds for i in tested) == [0, 1, 2, 3, 4]
    assert list(split(examples, 3, None)) == [([2], [0, 1], [3, 4])]
    with pytest.raises(ValueError, match="articles to train on.* Received: 0, 2, 3 quest.* fewer"):
        list(split(examples, 2, None))


# What the task models share.


def test_training_keeps_the_best_epoch_and_stops(load, capsys):
    parts = load("parts")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    batches = parts.padded_batches({}, {}, [1, 1], 2)
    batches.make_batch = lambda *_: (np.ones((2, 1)), np.ones((2, 1)))
    found, kept = iter([0.5, 0.7, 0.65, 0.6, 0.5, 0.9]), []
    settings = argparse.Namespace(epochs=10, patience=3)
    facts = parts.train(model, batches, lambda: next(found), settings, lambda: kept.append(1))
    assert facts["dev"] == 0.7 and facts["epochs_trained"] == 5 and len(kept) == 2
    assert ", dev F1 0.7000\n" in capsys.readouterr().out


def test_a_share_is_drawn_with_the_seed(load):
    parts = load("parts")
    lists = [list(range(100)), list("ab" * 50)]
    for share, size in ((0.001, 1), (0.1, 10), (1, 100)):
        numbers, letters = parts.draw_share(share, 7, *lists)
        assert len(set(numbers)) == size and letters == ["ab"[n % 2] for n in numbers]
        assert parts.draw_share(share, 7, *lists)[0] == numbers == sorted(numbers)
    assert parts.draw_share(0.1, 7, *lists) != parts.draw_share(0.1, 8, *lists)


def test_stored_layers_are_those_of_the_model(load, tmp_path):
    """They belong to the weights and options of a biLM, which may read code points."""
    cached, sentences = load("cached_layers"), [["ab", "b"], [], ["a"]]
    names = {"characters": (*SPECIAL_CHARACTERS, "a", "b"), "words": (*SPECIAL_WORDS, "ab")}
    code_points, found = CodePoints(**names, word_dim=3), []
    for clip in (3.0, 0.01):
        elmo = keras_elmo.ElmoLayer(make_config(code_points=code_points, cell_clip=clip))
        elmo.build((None, None, elmo.config.alphabet.row_length))
        random = np.random.default_rng(0)
        elmo.set_weights([0.3 * random.normal(size=x.shape) for x in elmo.weights])
        inputs = []
        model = keras.Model(inputs, cached.representations_of(elmo, inputs))
        found.append(numpy(model([cached.elmo_input(elmo, sentences)]))[0, :2])
        stored = cached.StoredLayers(elmo, sentences, tmp_path)
        np.testing.assert_allclose(found[-1], stored.inputs(sentences)[0, :2], atol=2e-3)
    assert stored.inputs([[]]).shape[:2] == (1, 0) and np.abs(found[0] - found[1]).max() > 0.01
    with pytest.raises(ValueError, match="reads bytes.* Received: one that reads code points. Use"):
        cached.representations_of(elmo, [], characters=keras.Input((None, 50)))


def test_a_text_is_split_after_its_stops(load):
    found = load("parts").sentences_of("A b ! C ? D . E f .".split())
    assert found == [["A", "b", "!"], ["C", "?"], ["D", "."], ["E", "f", "."]]


def test_spans_of_tokens(load, monkeypatch):
    words = load("word_vectors")
    for text in ("``Ada’s'' cats, ``````too”", "„Der Spiegel“ daily.", "It’’s ‘‘so’’ ‚x‛", "“`‟”"):
        tokens, spans = words.tokens_and_spans(text)
        assert "".join(text[a:b] for a, b in spans) == "".join(text.split())
        assert len(tokens) == len(spans) > 1
    monkeypatch.setattr(words.keras_elmo, "WordTokenizer", lambda name: lambda text: ["x", "y"])
    with pytest.raises(ValueError, match="the token 'y' in the text. Received: ' z'"):
        words.tokens_and_spans("x z")


def test_vocabulary_of_long_texts(load, vectors):
    make = load("word_vectors").words_and_embedding
    ids, embedding = make(vectors, [["Ada", "met"]], [["fine", "sat"]])
    assert ids == {"Ada": 2, "fine": 3} and not embedding.trainable
    assert numpy(embedding.embeddings).tolist() == [[0, 0], [0, 0], [2, 1], [1, 2]]
    # A passage counts once, though several questions repeat it.
    ids, embedding = make(None, [["a", "b"], ["a", "b"], ["b", "c"]], [["c", "c"]])
    assert ids == {"b": 2} and embedding.trainable
