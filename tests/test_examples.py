"""Every example runs to its end, on its own data and on files in the standard formats."""

import json
import lzma
import re
import shlex

import keras
import numpy as np
import pytest

import keras_elmo
from keras_elmo.alphabets import SPECIAL_CHARACTERS, SPECIAL_WORDS, CodePoints
from tests.conftest import make_config, numpy, slow
from tests.example_runs import COLUMNS, EXAMPLES, TOKENS, run, write_columns, write_trees

pytestmark = pytest.mark.extended

TAG_GUIDE = (EXAMPLES.parent / "docs/guide/tag.md").read_text("utf-8")


@pytest.fixture
def load(monkeypatch):
    """A function that imports an example."""
    pytest.importorskip("nltk")
    pytest.importorskip("seqeval")
    monkeypatch.syspath_prepend(EXAMPLES)
    return __import__


@pytest.fixture
def vectors(tmp_path):
    """A word2vec text file."""
    (tmp_path / "vectors.txt").write_text("3 2\nfine 1 2\nada 2 1\na 0 0.5\n")
    return tmp_path / "vectors.txt"


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.stem)
def test_help(path):
    for name in ("nltk", "seqeval", "matplotlib"):
        pytest.importorskip(name)
    if path.stem == "bert_layers":
        pytest.importorskip("keras_hub")
    text = path.read_text("utf-8")
    assert text.startswith('"""')
    if path.stem == "parts" or not re.search("ArgumentParser|make_parser", text):  # for others
        assert 'if __name__ == "__main__"' not in text
        return
    with pytest.raises(SystemExit, match="0"):
        run(path, "--help")


def test_one_edit_changes_the_default_preset():
    for path in EXAMPLES.rglob("*.py"):
        text = path.read_text("utf-8")
        options = '--preset", default=', '--preset", dest="elmo", default=', "PRESETS = {"
        defaults = sum(map(text.count, options))
        assert text.count('"elmo_small_en"') == defaults <= 1, path
        assert '"elmo_mini_en"' not in text, path


def test_quickstart():
    pytest.importorskip("nltk")
    out = run(EXAMPLES / "quickstart.py", "--epochs", 2)
    assert "layer weights" in out and "classes of two new sentences" in out


@slow
def test_quickstart_on_given_trees(tmp_path, preset):
    pytest.importorskip("nltk")
    trees = tmp_path / "trees.txt"
    trees.write_text("(3 (2 Good) (2 fun))\n\n(1 (2 Not) (1 (2 that) (2 good)))\n(0 (2 Bad))\n")
    given = "--data", trees, "--limit", 2, "--preset", preset, "--epochs", 1
    assert "on 2 sentences" in run(EXAMPLES / "quickstart.py", *given)


@slow
def test_input_and_output(tmp_path, preset):
    out = run(EXAMPLES / "input_and_output.py", "--preset", preset)
    before, after = (float(x) for x in out.splitlines()[0].removeprefix("loss ").split(" -> "))
    assert after < before / 2
    assert "at_input" in out and "at_output" in out and "Ada/NAME" in out
    columns = tmp_path / "train.conll"
    columns.write_text("-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n \n\nPeter NNP B-PER\n")
    given = "--data", columns, "--preset", preset, "--epochs", 1
    assert run(EXAMPLES / "input_and_output.py", *given).splitlines()[-1].startswith("EU/")


def test_random_bilm(tmp_path):
    run(EXAMPLES / "random_bilm.py", tmp_path / "bilm")
    assert sorted(p.name for p in (tmp_path / "bilm").iterdir()) == ["options.json", "weights.hdf5"]


def test_words_in_context(tmp_path, preset):
    pytest.importorskip("matplotlib")
    text = tmp_path / "text.txt"
    text.write_text("a bank here\nthe bank\nno word\n")
    picture = tmp_path / "bank.png"
    given = "--word", "bank", "--text", text, "--preset", preset, "--plot", picture
    out = run(EXAMPLES / "words_in_context.py", *given)
    assert "inf" not in out  # the other token is all the neighbours there are
    assert out.startswith("bank: 2 tokens, equal in layer 0\n  a [bank] here\n")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_korean_words_in_context(tmp_path, preset):
    given = "--language", "ko", "--preset", preset
    out = run(EXAMPLES / "words_in_context.py", *given)
    assert out.startswith("배: 18 tokens, equal in layer 0\n  [배] 가 항구 를 떠나 어")
    praise, irony = "춤 도 [잘 하 ㄴ다] , 최고", "[잘 하 ㄴ다] , 이제 는 거짓말"
    assert "잘 하 ㄴ다: 12 tokens, " in out and praise in out and irony in out
    text = tmp_path / "text.txt"
    text.write_text("a b a b\nb a b c\n")
    given = "--text", text, "--preset", preset, "--word", "a b"
    out = run(EXAMPLES / "words_in_context.py", *given)
    assert "a b: 3 tokens" in out and "  [a b] a b\n" in out and "  b [a b] c\n" in out
    # The vector of a word of several tokens is their mean.
    first, _ = keras_elmo.Embedder(preset).embed([["a", "b", "a", "b"], ["b", "a", "b", "c"]])
    here, there = first[1, :2].mean(axis=0), first[1, 2:].mean(axis=0)
    cosine = here @ there / np.linalg.norm(here) / np.linalg.norm(there)
    assert f"{cosine:.2f}  a b [a b]" in out


def test_the_picture_has_a_font_with_the_characters(load, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib import font_manager, rcParams

    find_font = load("words_in_context").find_font
    usual = font_manager.findfont("DejaVu Sans")
    assert find_font("a bank").get_file() == font_manager.findfont(font_manager.FontProperties())
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    monkeypatch.setitem(rcParams, "font.sans-serif", ["cmr10"])
    monkeypatch.setattr(
        font_manager, "findSystemFonts", lambda: [str(tmp_path / "broken.ttf"), usual]
    )
    assert find_font("бера га").get_file() == usual  # cmr10 has no Cyrillic
    for file in (None, usual, tmp_path / "broken.ttf"):
        with pytest.raises(
            ValueError, match=f"characters of the sentences. Received: {file or 'no'}"
        ):
            find_font("배", file)


def test_neighbours_without_context(tmp_path, preset):
    text = tmp_path / "text.txt"
    text.write_text("a bank here\nthe bank\n")
    given = "--word", "bank", "--text", text, "--preset", preset, "--static"
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("4 2\nfar -1 0\nbank 2 0\nnear 3 1\nnearer 9 1\n")
    out = run(EXAMPLES / "words_in_context.py", *given, vectors)
    assert "\n  without context: nearer 0.99, near 0.95, far -1.00\n" in out
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("bank\nbanks\nxyz\nbank\n")
    plot = tmp_path / "bank.png"
    out = run(EXAMPLES / "words_in_context.py", *given, vocabulary, "--plot", plot)
    assert plot.exists()
    [line] = [line for line in out.splitlines() if "without context" in line]
    one, two = keras_elmo.Embedder(preset).embed_tokens(["bank", "banks"])
    cosine = one @ two / np.linalg.norm(one) / np.linalg.norm(two)
    assert f"banks {cosine:.2f}" in line and "xyz" in line and " bank " not in line
    # A word of two tokens is their mean, (3, 1), and neither of them.
    text.write_text("a bank here\nsee a bank\n")
    vectors.write_text("a 2 0\nbank 4 2\nnear 6 2\nfar 0 1\n")
    out = run(EXAMPLES / "words_in_context.py", "--word", "a bank", *given[2:], vectors)
    assert "\n  without context: near 1.00, far 0.32\n" in out
    vectors.write_text("far -1 0\n")
    with pytest.raises(ValueError, match="--static expects vectors with 'bank'"):
        run(EXAMPLES / "words_in_context.py", *given, vectors)


def scores(out, name):
    """The numbers behind a name, in the order in which they are printed."""
    parts = out.split(f"{name} ")[1:]
    return [float(part.split()[0]) for part in parts]


def test_sst5_reads_trees(load, tmp_path):
    sst5 = load("sst5")
    trees = sst5.read_trees(write_trees(tmp_path / "trees") / "train.txt")
    nodes = [node for tree in trees for node in tree.subtrees()]
    labelled = dict(map(sst5.plain, nodes))
    assert labelled["absolute", '"', "delight", '"'] == 4
    assert labelled["(", "Not", "delight", ")"] == 0
    assert labelled["either/or",] == 2 and labelled["delight",] == 3
    assert len(trees) == 3 and len(labelled) == 9 + 7 - 1 + 5 - 1
    (tmp_path / "none.txt").write_text("\n")
    with pytest.raises(ValueError, match="a tree or more. Received: path="):
        sst5.read_trees(tmp_path / "none.txt")


@slow
def test_sst5(tmp_path, preset, vectors):
    pytest.importorskip("nltk")
    trees, file = write_trees(tmp_path / "trees"), tmp_path / "scores.json"
    given = "--data", trees, "--preset", preset, "--units", 8, "--epochs", 2, "--batch-size", 4
    given += "--shortest", 2, "--vectors", vectors, "--scores", file
    out = run(EXAMPLES / "sst5.py", *given, "--learning-rate", 0.01)
    written = check_last_line(out, file)
    assert written["test"] in (0, 0.5, 1)
    assert [*written["layer_weights"]] == ["at_input", "at_output"]
    assert "layer weights at_input: [0.3" in out and "at_output: [0.3" in out
    assert "layer weights" not in run(EXAMPLES / "sst5.py", *given, "--no-elmo")


def test_sst5_padding_changes_nothing(load, preset):
    sst5 = load("sst5")
    elmo = sst5.keras_elmo.ElmoLayer.from_preset(preset)
    vocabulary = {"fine": 2}
    model = sst5.build(sst5.word_embedding(vocabulary, 5), elmo, units=4)
    assert {"at_input", "at_output"} <= {layer.name for layer in model.layers}
    phrases = [("Fine", "!"), ("Not", "unseen", "at", "all", "!")]
    words, characters = sst5.make_inputs(vocabulary, phrases, elmo)
    assert words.tolist() == [[2, 1, 0, 0, 0], [1] * 5] and characters.shape == (2, 5, 50)
    apart = [numpy(model(sst5.make_inputs(vocabulary, [x], elmo)))[0] for x in phrases]
    np.testing.assert_allclose(numpy(model([words, characters])), apart, atol=1e-5)


def test_sst5_maxout_takes_the_largest_piece(load):
    sst5 = load("sst5")
    x = sst5.keras.Input((3,))
    model = sst5.keras.Model(x, sst5.maxout(x, units=2, pieces=4))
    given = np.random.normal(size=(5, 3)).astype("float32")
    kernel, _ = (numpy(weights) for weights in model.weights)
    expected = (given @ kernel).reshape(5, 2, 4).max(axis=-1)
    np.testing.assert_allclose(numpy(model(given)), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["ner", "srl", "entailment", "sst5"])
def test_stored_layers_are_those_of_the_model(load, preset, tmp_path, name):
    script = load(name)
    vectors = {"fine": np.ones(3, "float32")}
    sentences = [("Fine", "!"), ("Not", "fine", "at", "all")]
    known = {"words": {"fine": 2}, "tags": ["O", "S-A0"]}
    given = {
        "ner": (known, sentences),
        "srl": (known, [[(token, 1) for token in x] for x in sentences]),
        "entailment": (known["words"], [tuple(sentences), tuple(sentences[::-1])]),
        "sst5": (known["words"], sentences),
    }[name]
    found, weights = [], None
    for folder in (None, tmp_path):
        elmo = script.open_elmo(preset, sentences, folder)
        model = {
            "ner": lambda elmo: script.build(known, elmo, vectors)[0],
            "srl": lambda elmo: script.build(known, elmo, 4, 1, vectors)[0],
            "entailment": lambda elmo: script.build({"fine": 2}, 2, elmo, "both", vectors),
            "sst5": lambda elmo: script.build(
                script.word_embedding({"fine": 2}, 3, vectors), elmo, units=4
            ),
        }[name](elmo)
        assert any(np.all(numpy(x)[2:] == 1) for x in model.weights if x.shape == (3, 3))
        weights = weights or [numpy(x) for x in model.trainable_variables]
        for variable, value in zip(model.trainable_variables, weights):
            variable.assign(value)
        found.append(numpy(model(script.make_inputs(*given, elmo))))
    np.testing.assert_allclose(*found, atol=2e-3)  # float16 is stored


def test_ner_stores_layers_only_to_measure(load, tmp_path, capsys):
    given = "--train", "x", "--cache", str(tmp_path), "--tag", "Ada"
    with pytest.raises(SystemExit):
        load("ner").main(given)
    assert "use it without --save and --tag" in capsys.readouterr().err


REVIEWS = {
    "train": "1\t정말 재미 있 다\n0\t너무 지루 하 다\n"
    + "1\t배우 가 좋 다 !\n0\t시간 이 아깝 다 .\n" * 9,
    "dev": "1\t재미 있 다\n\n0\t지루 하 다\n1\t \n",
    "test": "0\t시간 이 아깝 다 ...\r\n1\t처음 보 는 좋 은 영화\n0\tA",
}


@pytest.fixture
def reviews(tmp_path):
    (tmp_path / "reviews").mkdir()
    for name, text in REVIEWS.items():
        (tmp_path / "reviews" / f"{name}.tsv").write_text(text, "utf-8", newline="")
    return tmp_path / "reviews"


def test_sentiment_reads_reviews(load, reviews):
    sentiment = load("sentiment")
    read = sentiment.read_reviews
    assert read(reviews / "dev.tsv", str.split) == (
        [["재미", "있", "다"], ["지루", "하", "다"]],
        [1, 0],
    )
    phrases, labels = read(reviews / "test.tsv", str.split)
    assert phrases[0][-1] == "..." and phrases[2] == ["A"] and labels == [0, 1, 0]
    for text, message in (
        ("1\ta\nx\tb\n", "a label from 0 on, a tab and a text. Received: line 2 of .*'x"),
        ("1 a\n", "Received: line 1 of .*dev.tsv: '1 a'"),
        ("\n", "Expected a review or more. Received: path="),
    ):
        (reviews / "dev.tsv").write_text(text)
        with pytest.raises(ValueError, match=message):
            read(reviews / "dev.tsv", str.split)


def test_sentiment_reads_vectors(load, tmp_path):
    sentiment = load("sentiment")
    (tmp_path / "vectors.txt").write_text("3 2\n배 1 0.5\nok 3 4\n없 0 0\n", "utf-8")
    found = sentiment.read_vectors(tmp_path / "vectors.txt", {"배", "OK", "달"})
    assert {word: x.tolist() for word, x in found.items()} == {"배": [1, 0.5], "OK": [3, 4]}
    with pytest.raises(
        ValueError, match="expects vectors for some of the 1 words. Received: path="
    ):
        sentiment.read_vectors(tmp_path / "vectors.txt", {"달"})


@slow
def test_sentiment(tmp_path, preset, reviews):
    pytest.importorskip("nltk")
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("2 3\n좋 1 0 1\n시간 0 1 0\n", "utf-8")
    given = "--data", reviews, "--tokenizer", "whitespace", "--epochs", 1, "--batch-size", 8
    out = run(EXAMPLES / "sentiment.py", *given, "--preset", preset, "--share", 0.5, 1)
    blocks = out.split("share 0.5, ")[1:] + out.split("share 1, ")[1:]
    assert [block.split(",")[0] for block in blocks] == 2 * ["baseline", "with ELMo"]
    assert len(scores(out, "test accuracy")) == 4
    assert set(np.round(scores(out, "test accuracy"), 3)) <= {0, 0.333, 0.667, 1}
    *_, last = out.splitlines()
    assert last.startswith("share 1: baseline 0.") and last.endswith(", seeds [1]")
    without = run(EXAMPLES / "sentiment.py", *given, "--vectors", vectors, "--seeds", 1, 2)
    *_, last = without.splitlines()
    mean, spread = (float(last.split(" ")[i].strip(",")) for i in (3, 5))
    found = scores(without, "test accuracy")
    assert "ELMo" not in without and len(found) == 2
    assert abs(mean - np.mean(found)) < 1e-3


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a rule of TensorFlow")
def test_the_first_two_batches_differ_in_every_width(load):
    """Otherwise TensorFlow expects the width of the first two batches of all batches."""
    parts = load("parts")
    inputs = {"words": [np.ones(n) for n in (3, 5, 12)], "other": [np.ones((9, 2))] * 3}
    targets = {"tags": [np.zeros(n, int) for n in (3, 5, 12)], "labels": [1, 2, 3]}
    batches = parts.padded_batches(inputs, targets, [3, 5, 12], batch_size=1)
    (first, _), (second, tags), (third, _) = batches
    assert first["words"].shape == third["other"][:, :8, 0].shape == (1, 8)
    assert second["words"].tolist() == [[1] * 5 + [0] * 4] and second["other"].shape == (1, 17, 2)
    assert tags["tags"].tolist() == [[0] * 5 + [-1] * 4] and tags["labels"] == [2]


def test_ner_reads_columns(load, tmp_path):
    ner = load("ner")
    expected = tuple([x.split() for x in text.split(" | ")] for text in (TOKENS, COLUMNS["BIOES"]))
    for scheme in COLUMNS:
        assert ner.read_columns(write_columns(tmp_path / scheme, scheme)) == expected
    path = write_columns(tmp_path / "tabs", "IOB1", "{}\tx y\t{}\r\n")
    path.write_text(path.read_text("utf-8").removesuffix("\n"), "utf-8")
    assert ner.read_columns(path) == expected


@pytest.mark.parametrize(
    "comment",
    ["# text = EU O", "#\thttp://a.b\t[2009-10-17]", "#", "#newdoc id=a", "#newdoc id = a"],
)
def test_ner_reads_comments_and_numbered_tokens(load, tmp_path, comment):
    """As in files after CoNLL-U; but # is also a token."""
    read, path = load("ner").read_columns, tmp_path / "x.conll"
    rows = ["0.1\tleft\tO\t-", "1-2\tzum\t_\t-", "1\tzu\tO\t-", "2\tEU\tB-ORG\t-"]
    path.write_text("\n".join([comment, *rows, "", comment, "1\t#\tO\t-", ""]))
    expected = [["zu", "EU"], ["#"]], [["O", "S-ORG"], ["O"]]
    assert read(path, tag_column=3) == read(path, 2, 3) == expected
    path.write_text(path.read_text().replace("\t-", ""))
    assert read(path) == expected
    with pytest.raises(ValueError, match="in column 4, O, or .*Received: line 4 of .*--tag-column"):
        read(path, tag_column=4)
    path.write_text(f"{comment}\n# O\n3 O\n")
    assert read(path) == ([["#", "3"]], [["O", "O"]])


@pytest.mark.parametrize(
    "text, message",
    [
        (
            "EU B-ORG\nsays\n",
            "a token without spaces and, in the last column, O, .*line 2 of .*: 'says'",
        ),
        ("EU NNP\n", "O, or B-, I-, E-, S- and a type. Received: line 1 of"),
        ("O\n", "Received: line 1 of"),
        ("EU B-\n", "Received: line 1 of"),
        ("New York\tB-LOC\n", "a token without spaces.*'New York"),
        ("-DOCSTART- O\n\n", "Expected a sentence or more. Received: path="),
    ],
)
def test_ner_malformed(load, tmp_path, text, message):
    (tmp_path / "train.conll").write_text(text)
    with pytest.raises(ValueError, match=message):
        load("ner").read_columns(tmp_path / "train.conll")


@pytest.mark.parametrize("elmo", [True, pytest.param(False, marks=slow)])
def test_ner_trains_saves_and_tags(tmp_path, preset, elmo):
    pytest.importorskip("seqeval")
    file = write_columns(tmp_path / "all.conll", "IOB1")
    given = "--train", file, "--dev", file, "--test", file, "--save", tmp_path / "saved"
    given += "--preset", preset, "--epochs", 100, "--learning-rate", 0.005
    if not elmo:
        given += ("--no-elmo",)
    text = "--tokenizer", "whitespace", "--tag", *TOKENS.split(" | ")
    out = run(EXAMPLES / "ner.py", *given, *text)
    on_dev = scores(out, ", dev")
    assert len(on_dev) == 100 and on_dev[0] < 1 and max(on_dev) == 1
    tagged = write_columns(tmp_path / "gold", "BIOES").read_text("utf-8")
    tagged = tagged.removeprefix("-DOCSTART- O\n\n\n")
    assert out.endswith("dev 100.0 test 100.0\n" + tagged)
    loaded = run(EXAMPLES / "ner.py", "--load", tmp_path / "saved", "--test", file, *text)
    assert loaded == "test F1 1.0000\n" + tagged


def test_the_guide_leads_to_a_tagger_in_five_commands(load, tmp_path, preset, monkeypatch, capsys):
    [block] = re.findall(r"^```bash\n([^`]*?--save tagger\n[^`]*?)^```", TAG_GUIDE, re.MULTILINE)
    commands = [shlex.split(line) for line in block.splitlines()]
    assert len(commands) == 5 and [x[:2] for x in commands[3:]] == 2 * [
        ["python", "examples/ner.py"]
    ]
    ner = load("ner")
    monkeypatch.chdir(tmp_path)
    write_columns(tmp_path / "train.conll", "IOB2")
    monkeypatch.setattr(ner, "train", lambda *given: given[-1]())  # it saves
    for _, _, *arguments in commands[3:]:
        ner.main([*arguments, "--preset", str(preset)])
    words = [line.split(" ")[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert words == [*"Ada Lovelace met Charles Babbage in London .".split(), ""]


def test_ner_stops_without_progress(tmp_path, load, monkeypatch, capsys):
    ner = load("ner")
    file = write_columns(tmp_path / "all.conll", "IOB1")
    file.write_text(20 * file.read_text("utf-8"), "utf-8")  # 40 sentences: two batches an epoch
    found = iter([0.5, 0.7, 0.65, 0.6, 0.5, 0.9])
    monkeypatch.setattr(ner, "f1_score", lambda *_, **__: next(found))
    monkeypatch.setattr(ner, "tag", lambda *_: [])
    saved = []
    monkeypatch.setattr(ner, "save_tagger", lambda folder, *_: saved.append(folder))
    given = [f"--train={file}", f"--dev={file}", "--no-elmo", "--patience=3"]
    ner.main([*given, f"--save={tmp_path}"])
    assert saved == [tmp_path, tmp_path]  # after the first epoch and the second
    assert next(found) == 0.9
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 5 and re.fullmatch(r"epoch 2: loss [\d.]+, dev 0.7000", printed[1])


def test_ner_names_what_is_missing(load, capsys):
    with pytest.raises(SystemExit):
        load("ner").main(["--tag", "a"])
    assert "expected --train, to train a tagger, or --load" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        load("ner").main(["--train", "a", "--scores", "b"])
    assert "--scores needs --train and --test" in capsys.readouterr().err


PAIRS = [
    ("E", 'A dog "barks" .', "An animal barks ."),
    ("N", "A dog barks .", "It rains ."),
    ("C", "A dog barks .", "No dog barks at all ."),
]


def write_pairs(path, form="{}\t{}\t{}\n", pairs=PAIRS, header=""):
    path.write_text(header + "".join(form.format(*pair) for pair in pairs), "utf-8")
    return path


def test_files_that_begin_with_a_byte_order_mark(load, tmp_path):
    path = tmp_path / "data"  # as some editors on Windows begin a file
    path.write_text("(3 (2 It) (3 works))\n", "utf-8-sig")
    assert [str(tree.label()) for tree in load("sst5").read_trees(path)] == ["3"]
    path.write_text("1\tIt works\n", "utf-8-sig")
    assert load("sentiment").read_reviews(path, str.split) == ([["It", "works"]], [1])
    for text in ("E\tA\tB\n", "label\tsentence1\tsentence2\nE\tA\tB\n"):
        path.write_text(text, "utf-8-sig")
        assert load("entailment").read_pairs(path) == ([(["A"], ["B"])], ["E"])


def test_entailment_reads_pairs(load, tmp_path):
    entailment = load("entailment")
    tokens = tuple(tuple(x.split()) for x in ('A dog " barks " .', "An animal barks ."))
    sick = "pair_ID\tsentence_A\tsentence_B\tentailment_label\trelatedness_score\n"
    snli = "gold_label\tsentence1_parse\tsentence1\tsentence2\tcaptionID\n"
    for number, (header, form, more) in enumerate(
        [("", "{}\t{}\t{}\n", []), (sick, "7\t{1}\t{2}\t{0}\t4.5\r\n", [])]
        + [(snli, "{0}\t( ( A ) )\t{1}\t{2}\t3#1\n\n", [("-", "No one", "agreed")])]
    ):
        path = write_pairs(tmp_path / f"{number}.tsv", form, [*more, *PAIRS], header)
        pairs, labels = entailment.read_pairs(path)
        assert labels == ["E", "N", "C"] and len(pairs) == 3
        assert tuple(map(tuple, pairs[0])) == tokens


@pytest.mark.parametrize(
    "text, message",
    [
        ("E\ta\tb\nE\ta\n", "two sentences with tabs between, .*line 2 of .*: 'E\\\\ta'"),
        ("E\ta\tb\tc\n", "a first line that names such columns. Received: line 1 of"),
        ("E\t \tb\n", "Received: line 1 of"),
        ("sentence1\tlabel\tsentence2\na\tE\n", "Received: line 2 of"),
        ("label\tsentence1\tsentence2\n-\ta\tb\n", "a pair or more. Received: path="),
    ],
)
def test_entailment_malformed(load, tmp_path, text, message):
    (tmp_path / "train.tsv").write_text(text)
    with pytest.raises(ValueError, match=message):
        load("entailment").read_pairs(tmp_path / "train.tsv")


def test_entailment_trains(tmp_path, preset, eager, vectors):
    pytest.importorskip("nltk")
    file = write_pairs(tmp_path / "all.tsv")
    given = "--train", file, "--dev", file, "--test", file, "--preset", preset
    given += "--vectors", vectors, "--cache", tmp_path, "--scores", tmp_path / "scores.json"
    out = run(EXAMPLES / "entailment.py", *given, "--epochs", 3, "--learning-rate", 0.003)
    losses = [float(x.split(",")[0]) for x in out.split("loss ")[1:]]
    assert len(losses) == 3 and losses[-1] < losses[0]
    written = check_last_line(out, tmp_path / "scores.json")
    assert written["test"] == written["dev"] == pytest.approx(max(scores(out, ", dev")), abs=1e-4)
    assert written["test"] > 0.3 and {*written["layer_weights"]} == {"at_input", "at_output"}


def test_entailment_reads_one_layer(load, preset, tmp_path, monkeypatch):
    entailment = load("entailment")
    sentences = [("Fine", "!"), ("Not", "fine", "at", "all")]
    elmo = entailment.open_elmo(preset, sentences, tmp_path)
    inputs = entailment.make_inputs({"fine": 2}, [tuple(sentences)], elmo)
    for layer in (0, 1, -1, None):
        model = entailment.build({"fine": 2}, 2, elmo, "both", layer=layer)
        before = numpy(model(inputs))
        for n in range(3):
            changed = [x.copy() for x in inputs]
            changed[1][:, :, n] += 1.0
            is_read = layer is None or n == layer % 3
            assert (np.abs(numpy(model(changed)) - before).max() > 1e-4) == is_read, (layer, n)
        lambdas = {x.l2 for x in model.layers if x.name.startswith("at_")}
        assert lambdas == {1e-3}
    with pytest.raises(ValueError, match="out-of-bounds"):
        entailment.build({"fine": 2}, 2, elmo, "both", layer=3)

    built, build = [], entailment.build
    monkeypatch.setattr(entailment, "build", lambda *x: built.append(build(*x)) or 1 / 0)
    file = write_pairs(tmp_path / "all.tsv")
    given = [f"--{name}={file}" for name in ("train", "dev", "test")]
    with pytest.raises(ZeroDivisionError):
        entailment.main([*given, f"--preset={preset}", "--layer=0", "--l2=1"])
    mix = built[0].get_layer("at_output")
    assert mix.l2 == 1 and mix.scalars.shape == (1,)


@pytest.mark.parametrize("place", ["input", "output", "both", None])
def test_entailment_padding_changes_nothing(load, preset, place):
    entailment = load("entailment")
    elmo = place and entailment.keras_elmo.ElmoLayer.from_preset(preset)
    model = entailment.build({"fine": 2}, 2, elmo, place)
    places = {"both": ["input", "output"], None: []}.get(place, [place])
    assert {layer.name for layer in model.layers if layer.name.startswith("at_")} == {
        f"at_{x}" for x in places
    }
    width = 2 * elmo.config.projection_dim if elmo else 0
    widths = 100 + width * ("input" in places), 300 + width * ("output" in places)
    shapes = [tuple(x.shape) for x in model.trainable_variables]
    assert (widths[0], 600) in shapes and (4 * widths[1], 150) in shapes
    pairs = [("Fine .", "Not unseen at all !"), ("A dog barks", "Fine !")]
    pairs = [tuple(map(str.split, pair)) for pair in pairs]
    inputs = entailment.make_inputs({"fine": 2}, pairs, elmo)
    assert inputs[0].tolist() == [[2, 1, 0], [1, 1, 1]] and inputs[-1].shape[:2] == (2, 5)
    apart = [numpy(model(entailment.make_inputs({"fine": 2}, [x], elmo)))[0] for x in pairs]
    np.testing.assert_allclose(numpy(model(inputs)), apart, atol=1e-5)
    swapped = entailment.make_inputs({"fine": 2}, [pair[::-1] for pair in pairs], elmo)
    assert np.abs(numpy(model(swapped)) - apart).max() > 1e-4


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


def test_srl_reads_frames(load, tmp_path):
    srl = load("srl")
    for name, text in {
        "spaces": ROLES,
        "tabs": ROLES.replace(" ", "\t").replace("\n", "\r\n"),
    }.items():
        (tmp_path / name).write_text("-DOCSTART- 0 O\n" + text)
        frames, tags = srl.read_frames(tmp_path / name)
        assert frames[0] == list(zip("Ada sold her engine .".split(), [0, 1, 0, 0, 0]))
        assert [flag for _, flag in frames[1]] == [0, 0, 1, 0, 0]
        assert tags == ["B-A0 B-V B-A1 I-A1 O".split(), "O O B-A0 B-V O".split()]


@pytest.mark.parametrize("text", ["Ada B-A0\n", "Ada 2 B-A0\n", "Ada NNP 1 B-A0\n"])
def test_srl_malformed(load, tmp_path, text):
    (tmp_path / "train.conll").write_text("x 0 O\n" + text)
    with pytest.raises(ValueError, match="then 1 .predicate. or 0, .* line 2 of"):
        load("srl").read_frames(tmp_path / "train.conll")


def test_srl_refuses_comments_which_would_move_the_flags(load, tmp_path):
    (tmp_path / "train.conll").write_text("# 1 text\n" + ROLES)
    with pytest.raises(
        ValueError, match="a flag for each of 10 tokens. Received: 11 in .*Remove c"
    ):
        load("srl").read_frames(tmp_path / "train.conll")


def test_srl_trains(tmp_path, preset, eager, vectors):
    pytest.importorskip("seqeval")
    file = tmp_path / "all.conll"
    file.write_text(ROLES)
    given = "--train", file, "--dev", file, "--test", file, "--preset", preset
    given += "--vectors", vectors, "--cache", tmp_path, "--scores", tmp_path / "scores.json"
    more = "--units", 20, "--depth", 1, "--epochs", 8, "--learning-rate", 0.01
    out = run(EXAMPLES / "srl.py", *given, *more)
    losses = [float(x.split(",")[0]) for x in out.split("loss ")[1:]]
    written = check_last_line(out, tmp_path / "scores.json")
    assert len(losses) == 8 and losses[-1] < losses[0]
    assert written["test"] == pytest.approx(max(scores(out, ", dev")), abs=1e-4)
    assert "layer weights at_input: [0." in out


def test_srl_leaves_the_predicate_out_of_its_score(load, monkeypatch):
    srl = load("srl")
    tags = [["S-A0", "S-V", "O"], ["O", "S-V", "S-A1"]]
    found = [["S-A0", "O", "O"], ["S-V", "S-V", "O"]]
    monkeypatch.setattr(srl.ner, "tag", lambda *_: found)
    assert srl.score(None, None, None, tags) == pytest.approx(2 / 3)  # 1 of 1 found, 1 of 2 there


def test_srl_padding_changes_nothing(load, preset):
    srl = load("srl")
    known = {"words": {"ada": 2}, "tags": ["O", "S-A0"]}
    elmo = srl.keras_elmo.ElmoLayer.from_preset(preset)
    model, _ = srl.build(known, elmo, 5, 1)
    frames = [[("Ada", 0), ("left", 1)], [("Ada", 1)]]
    words, flags, characters = srl.make_inputs(known, frames, elmo)
    assert words.tolist() == [[2, 1], [2, 0]] and flags.tolist() == [[0, 1], [1, 0]]
    short = numpy(model(srl.make_inputs(known, frames[1:], elmo)))[0]
    np.testing.assert_allclose(numpy(model([words, flags, characters]))[1, :1], short, atol=1e-5)
    assert np.abs(numpy(model([words, 1 - flags, characters]))[1, :1] - short).max() > 1e-5


def test_ner_padding_changes_nothing(load, preset):
    ner = load("ner")
    known = {"words": {"ada": 2}, "tags": ["O", "S-PER", "B-PER"]}
    elmo = ner.keras_elmo.ElmoLayer.from_preset(preset)
    width = 2 * elmo.config.projection_dim
    for given, more in ((elmo, width), (None, 0)):
        model, tagger = ner.build(known, given)
        for weight in model.trainable_variables:  # the CRF begins with zeros
            weight.assign(weight + 0.3 * np.random.normal(size=weight.shape))
        sentences = [["Ada"], ["Ada", "is", "here", "today"]]
        both = ner.make_inputs(known, sentences)
        alone = ner.make_inputs(known, sentences[:1])
        assert both[0].tolist() == [[2, 0, 0, 0], [2, 1, 1, 1]]
        np.testing.assert_allclose(numpy(model(both))[0, :1], numpy(model(alone))[0], atol=1e-4)
        assert numpy(tagger(both))[0, 0] == numpy(tagger(alone))[0, 0]
        embedded = 3 * 100 + 262 * 16 + (3 * 16 + 1) * 128
        lstms = 2 * 4 * 200 * (100 + 128 + more + 200 + 1) + 2 * 4 * 100 * (400 + 100 + 1)
        crf = 3 * (200 + 1) + 3 * (3 + 2)
        mix = 3 + 1 if given else 0
        found = sum(int(np.prod(x.shape)) for x in model.trainable_variables)
        assert found == embedded + lstms + crf + mix


def parsed(script, arguments, monkeypatch):
    """Return the settings that a script reads from arguments."""
    found = []
    with monkeypatch.context() as patch:
        patch.setattr(script, "train_tagger", lambda settings: found.append(settings) or ({}, {}))
        script.main(arguments)
    return found[0]


def test_a_share_is_drawn_with_the_seed(load, preset, tmp_path, monkeypatch, capsys):
    ner, draw_share, seen = load("ner"), load("parts").draw_share, []
    lists = [list(range(100)), list("ab" * 50)]
    for share, size in ((0.001, 1), (0.1, 10), (1, 100)):
        numbers, letters = draw_share(share, 7, *lists)
        assert len(set(numbers)) == size and letters == ["ab"[n % 2] for n in numbers]
        assert draw_share(share, 7, *lists)[0] == numbers == sorted(numbers)
    assert draw_share(0.1, 7, *lists) != draw_share(0.1, 8, *lists)

    train = tmp_path / "train.conll"
    train.write_text("".join(f"word{n} S-T{n}\n\n" for n in range(20)))
    monkeypatch.setattr(ner, "train", lambda _, on_train, *rest: seen.append(on_train) or {})
    given = f"--train={train}", f"--preset={preset}", f"--cache={tmp_path / 'cache'}"
    models = []
    for share, size in (("0.5", 9), ("0.5", 9), ("1", 18)):
        keras.utils.set_random_seed(1)
        model, known = ner.train_tagger(parsed(ner, [*given, f"--share={share}"], monkeypatch))
        models.append(model)
        assert len(seen[-1].lengths) == size and len(known["words"]) == size
        assert len(known["tags"]) == 1 + 4 * size
    assert len(list((tmp_path / "cache").glob("*.hdf5"))) == 1  # for all shares
    for one, two in zip(*(model.get_weights() for model in models[:2]), strict=True):
        np.testing.assert_array_equal(one, two)  # whether the layers were stored or not
    for share in ("0", "-1", "1.1", "nan"):
        with pytest.raises(SystemExit):
            ner.main([*given, f"--share={share}"])
        assert f"above 0 and up to 1. Received: {share}" in capsys.readouterr().err


def test_ner_holds_a_tenth_of_the_sentences_out(load, tmp_path, monkeypatch, capsys):
    ner = load("ner")
    train = tmp_path / "train.conll"
    text = "".join(f"word{n} S-{'LOC' if n == 10 else 'PER'}\n\n" for n in range(12))
    train.write_text(text, "utf-8-sig")  # as some editors on Windows begin a file
    seen = {}

    def trained(model, batches, score, settings, save):
        gold, [predicted] = score()
        seen.update(sentences=len(batches.lengths), dev=gold)
        assert len(predicted) == 2
        return {}

    monkeypatch.setattr(ner, "train", trained)
    monkeypatch.setattr(ner, "f1_score", lambda gold, found, **_: (gold, [found]))
    ner.main([f"--train={train}", "--no-elmo"])
    assert seen == {"sentences": 10, "dev": [["S-PER"], ["S-LOC"]]}
    assert ", 2 choose the epoch" in capsys.readouterr().out
    train.write_text("one O\n")
    with pytest.raises(ValueError, match="expected two sentences. Received: one in"):
        ner.main([f"--train={train}", "--no-elmo"])


def write_gap(folder):
    """Write GAP's files with two rows each, and return the folder."""
    columns = "ID Text Pronoun Pronoun-offset A A-offset A-coref B B-offset B-coref URL".split()
    text = "Ada Lovelace met ``Mary''. She left."
    one = ["1", text, "She", "27", "Ada Lovelace", "0", "TRUE", "Mary", "19", "FALSE", "u"]
    two = [
        "2",
        "Bob saw Al; his cat sat.",
        "his",
        "12",
        "Bob",
        "0",
        "FALSE",
        "Al",
        "8",
        "TRUE",
        "u",
    ]
    table = "\n".join("\t".join(row) for row in (columns, one, two)) + "\n"
    folder.mkdir()
    for name in ("development", "validation", "test"):
        (folder / f"gap-{name}.tsv").write_text(table, "utf-8")
    return folder


def test_coreference_reads_gap(load, tmp_path):
    coreference = load("coreference")
    file = write_gap(tmp_path / "gap") / "gap-test.tsv"
    one, two = coreference.read_gap(file)
    marked = [[x for x, m in zip(one["tokens"], column) if m] for column in one["mentions"].T]
    assert marked == [["She"], ["Ada", "Lovelace"], ["Mary"]]
    assert (one["label"], one["feminine"], two["label"], two["feminine"]) == (1, True, 2, False)
    file.write_text("ID\tText\n1\tx\n")
    with pytest.raises(ValueError, match="the columns of GAP, .*Received: row 1 of"):
        coreference.read_gap(file)
    file.write_text("")
    with pytest.raises(ValueError, match="a row or more. Received: path="):
        coreference.read_gap(file)


def test_words(load, tmp_path, monkeypatch):
    words, file = load("words"), tmp_path / "vectors.txt"
    text = "``Ada’s'' cats, ``````too”"
    assert [text[a:b] for a, b in words.tokens_and_spans(text)[1]][:4] == ["``", "Ada", "’s", "''"]
    for text in ("He read „Der Spiegel“ daily.", "It’’s ‘‘so’’ ‚x‛", "“`‟”"):
        tokens, spans = words.tokens_and_spans(text)
        assert "".join(text[a:b] for a, b in spans) == "".join(text.split())
        assert len(tokens) == len(spans) > 1
    monkeypatch.setattr(words.keras_elmo, "WordTokenizer", lambda name: lambda text: ["x", "y"])
    with pytest.raises(ValueError, match="the token 'y' in the text. Received: ' z'"):
        words.tokens_and_spans("x z")
    file.write_text("2 2\nada 1 0\ncat 0 1\n")
    ids, embedding = words.words_and_embedding(file, [["Ada", "met"]], [["cat", "sat"]])
    assert ids == {"Ada": 2, "cat": 3} and not embedding.trainable
    assert numpy(embedding.embeddings).tolist() == [[0, 0], [0, 0], [1, 0], [0, 1]]
    ids, embedding = words.words_and_embedding(None, [["a", "b"], ["b"]], [["c", "c"]])
    assert ids == {"b": 2} and embedding.trainable


def test_coreference_scores_pairs_as_gap_does(load):
    rows = [{"label": n, "feminine": n == 1} for n in (1, 2, 0, 1)]
    found = load("coreference").measures(rows, [np.int64(x) for x in (1, 1, 2, 0)])
    # Masculine: none of one true pair and of two found. Feminine: one of two true, one found.
    assert found["f1"] == pytest.approx(2 / 6) and found["masculine"] == 0
    assert found["feminine"] == pytest.approx(2 / 3) and found["bias"] > 1


def check_last_line(out, file):
    """Compare the last line of an example with the scores it wrote; return the scores."""
    written = json.loads(file.read_text("utf-8"))
    assert (
        out.splitlines()[-1] == f"dev {100 * written['dev']:.1f} test {100 * written['test']:.1f}"
    )
    assert 0 <= written["test"] <= 1
    return written


def test_coreference(tmp_path, preset, eager):
    vectors, file = tmp_path / "vectors.txt", tmp_path / "scores.json"
    vectors.write_text("2 3\nada 1 0 1\ncat 0 1 0\n")
    given = "--data", write_gap(tmp_path / "gap"), "--units", 4, "--scores", file
    out = run(EXAMPLES / "coreference.py", *given, "--epochs", 1, "--preset", preset)
    assert len(check_last_line(out, file)["layer_weights"]["at_input"]) == 3
    given += "--vectors", vectors, "--epochs", 1, "--no-elmo"
    assert check_last_line(run(EXAMPLES / "coreference.py", *given), file)["layer_weights"] == {}


def write_squad(path):
    """Write three articles in SQuAD's format, four passages with a question each."""
    paragraphs = []
    for n, name in enumerate(("Ada", "Bob", "Cy", "Di")):
        answers = [{"answer_start": 4, "text": f"{name}"}, {"answer_start": 4, "text": name}]
        question = {"id": f"{n}", "question": "Who left?", "answers": answers}
        text = f"The {name} left. Then" + n * " all" + "."
        paragraphs.append({"context": text, "qas": [question]})
    articles = [{"paragraphs": some} for some in (paragraphs[:2], *zip(paragraphs[2:]))]
    path.write_text(json.dumps({"version": "1.1", "data": articles}))
    return path


def test_questions_reads_and_scores_as_squad(load, tmp_path):
    squad = load("squad")
    file = write_squad(tmp_path / "squad.json")
    examples = squad.read_squad(file)
    assert [x["context"][x["start"]] for x in examples] == ["Ada", "Bob", "Cy", "Di"]
    assert [x["article"] for x in examples] == [0, 0, 1, 2]
    assert squad.compare("The  Ada!", ["x", "ada"]).tolist() == [1, 1]
    assert squad.compare("Ada Lovelace", ["Lovelace of London"]) == pytest.approx([0.4, 0])
    start, end = np.zeros(40), np.zeros(40)
    start[[2, 30]], end[[1, 35, 39]] = 9, 8
    assert squad.best_span(start, end, 38) == (30, 35)
    assert squad.best_span(start, end, 30)[0] == 2  # the end of the best span is not before it
    file.write_text(file.read_text().replace('"answer_start": 4', '"answer_start": 400'))
    with pytest.raises(ValueError, match="an answer inside the passage. Received: question 0 of"):
        squad.read_squad(file)
    file.write_text(re.sub(r'"answers": \[[^]]*', '"answers": [', file.read_text()))
    with pytest.raises(ValueError, match="as in SQuAD 1.1. Received: question 0 of .* without one"):
        squad.read_squad(file)


@slow
def test_questions(tmp_path, preset, eager):
    squad, file = write_squad(tmp_path / "squad.json"), tmp_path / "scores.json"
    given = "--train", squad, "--units", 4, "--epochs", 1, "--scores", file
    out = run(EXAMPLES / "questions.py", *given, "--test", squad, "--preset", preset)
    written = check_last_line(out, file)
    assert set(written["layer_weights"]) == {"at_input", "at_output"}
    with pytest.raises(SystemExit, match="2"):
        run(EXAMPLES / "questions.py", *given, "--no-elmo")


def test_questions_are_split_by_article(load):
    splits, examples = load("questions").splits, [{"article": n} for n in (0, 0, 1, 2, 10)]
    folds = list(splits(examples, 5, 3))
    assert folds[0] == ([3], [2, 4], [0, 1]) and folds[1] == ([0, 1], [3], [2, 4])
    assert sorted(i for _, _, tested in folds for i in tested) == [0, 1, 2, 3, 4]
    assert list(splits(examples, 3, None)) == [([2], [0, 1], [3, 4])]
    with pytest.raises(ValueError, match="articles to train on.* Received: 0, 2, 3 quest.* fewer"):
        list(splits(examples, 2, None))


def test_questions_padding_changes_nothing(load):
    questions = load("questions")
    keras.utils.set_random_seed(1)
    model = questions.build(keras.layers.Embedding(9, 5), (3, 4), 6, 0.1)
    random, texts = np.random.default_rng(0), {"context": 7, "question": 3}
    inputs = {}
    for name, n in texts.items():
        inputs[name] = random.integers(2, 9, (1, n))
        inputs[f"{name}_characters"] = random.integers(1, 262, (1, n, 20))
        inputs[f"{name}_layers"] = random.normal(size=(1, n, 3, 4)).astype("float32")
    padded = {
        name: np.pad(x, [(0, 0), (0, 2), *[(0, 0)] * (x.ndim - 2)]) for name, x in inputs.items()
    }
    expected = {name: numpy(x) for name, x in model(inputs).items()}
    for name, scores in model(padded).items():
        np.testing.assert_allclose(numpy(scores)[:, :7], expected[name], atol=1e-5)
        assert numpy(scores)[:, 7:].max() < -1e3


def write_proteins(folder):
    folder.mkdir()
    lines = "a\tACDX\tHHEC\t1101\n" + 3 * "b\tMKV\tECC\t111\n"
    for name in ("train", "dev", "test"):
        with lzma.open(folder / f"secondary_structure_{name}.tsv.xz", "wt") as file:
            file.write(lines)
    return folder


def test_proteins(load, tmp_path, preset, eager):
    data, file = write_proteins(tmp_path / "data"), tmp_path / "scores.json"
    read = load("proteins").read_proteins
    sequences, labels = read(data / "secondary_structure_dev.tsv.xz", 2)
    assert sequences == [["A", "C", "D", "X"], ["M", "K", "V"]]
    assert [x.tolist() for x in labels] == [[0, 0, -1, 2], [1, 2, 2]]
    given = "--data", data, "--units", 4, "--epochs", 1, "--scores", file
    out = run(EXAMPLES / "proteins.py", *given, "--preset", preset)
    assert check_last_line(out, file)["layer_weights"]["at_input"]
    check_last_line(run(EXAMPLES / "proteins.py", *given, "--no-elmo"), file)
    with pytest.raises(SystemExit, match="2"):
        run(EXAMPLES / "proteins.py", *given)
    for text, message in (("a\tAC\tHZ\t11\n", "line 1 of"), ("", "a protein or more")):
        with lzma.open(tmp_path / "bad.xz", "wt") as bad:
            bad.write(text)
        with pytest.raises(ValueError, match=message):
            read(tmp_path / "bad.xz")


@slow
def test_proteins_pretrains(tmp_path, eager):
    pytest.importorskip("matplotlib")
    given = "--data", write_proteins(tmp_path / "data"), "--units", 4, "--epochs", 1
    out = run(EXAMPLES / "proteins.py", *given, "--run", tmp_path / "run", "--run-epochs", 1)
    assert (tmp_path / "run/preset/weights.hdf5").exists() and "dev " in out


def test_questions_scores_of_squad(load):
    squad = load("squad")
    assert squad.compare("an Ada", ["Ada"]).tolist() == [1, 1]
    assert squad.compare("the", ["The!"]).tolist() == [1, 1]  # nothing is left of both
    assert squad.compare("the", ["Ada"]).tolist() == [0, 0]
    start, end = np.zeros(20), np.zeros(20)
    start[0], end[14], end[15] = 9, 1, 9
    assert squad.best_span(start, end, 20) == (0, 14)  # 15 tokens, and not 16


def test_questions_answers_end_before_punctuation(load, tmp_path):
    answers = [("Ada", 0), ("who left", 5), ("left", 9)]
    questions = [
        {"id": text, "question": "Who?", "answers": [{"answer_start": n, "text": text}]}
        for text, n in answers
    ]
    article = {"paragraphs": [{"context": "Ada, who left.", "qas": questions}]}
    (tmp_path / "squad.json").write_text(json.dumps({"data": [article]}))
    found = load("squad").read_squad(tmp_path / "squad.json")
    assert [(x["start"], x["end"]) for x in found] == [(0, 0), (2, 3), (3, 3)]


def test_words_of_a_passage_with_several_questions_count_once(load):
    training = [["a", "b"], ["a", "b"], ["b", "c"]]
    ids, _ = load("words").words_and_embedding(None, training, [])
    assert ids == {"b": 2}


def test_a_text_is_split_after_its_stops(load):
    found = load("parts").sentences_of("A b ! C ? D . E f .".split())
    assert found == [["A", "b", "!"], ["C", "?"], ["D", "."], ["E", "f", "."]]


def test_a_bilm_that_reads_code_points_reads_its_own_ids(load, tmp_path):
    cached, sentences = load("cached_layers"), [["ab", "b"], [], ["a"]]
    names = {"characters": (*SPECIAL_CHARACTERS, "a", "b"), "words": (*SPECIAL_WORDS, "ab")}
    config = make_config(code_points=CodePoints(**names, word_dim=3))
    elmo = keras_elmo.ElmoLayer(config)
    elmo.build((None, None, config.alphabet.row_length))
    inputs = []
    model = keras.Model(inputs, cached.representations_of(elmo, inputs))
    found = numpy(model([cached.elmo_input(elmo, sentences)]))
    stored = cached.StoredLayers(elmo, sentences, tmp_path).inputs(sentences)
    np.testing.assert_allclose(found[0, :2], stored[0, :2], atol=2e-3)
    with pytest.raises(ValueError, match="reads bytes.* Received: one that reads code points. Use"):
        cached.representations_of(elmo, [], characters=keras.Input((None, 50)))


def test_stored_layers_of_an_empty_sentence(load, tmp_path):
    elmo = keras_elmo.ElmoLayer(make_config())
    elmo.build((None, None, 13))
    assert load("cached_layers").StoredLayers(elmo, [[]], tmp_path).inputs([[]]).shape[:2] == (1, 0)


def test_stored_layers_belong_to_weights_and_options(load, tmp_path):
    one, two = (keras_elmo.ElmoLayer(make_config(cell_clip=clip)) for clip in (3.0, 0.01))
    for layer in (one, two):
        layer.build((None, None, 13))
    two.set_weights(one.get_weights())
    stored = load("cached_layers").StoredLayers
    first, second = (
        stored(elmo, [["a", "b"]], tmp_path).inputs([["a", "b"]]) for elmo in (one, two)
    )
    assert len(list(tmp_path.glob("*.hdf5"))) == 2
    assert np.abs(first - second).max() > 1e-3


def test_coreference_padding_changes_nothing(load):
    keras.utils.set_random_seed(1)
    model = load("coreference").build(keras.layers.Embedding(9, 5), (3, 4), 6)
    random, mentions = np.random.default_rng(0), np.zeros((1, 7, 3), "float32")
    mentions[0, [1, 3, 5, 6], [0, 1, 2, 2]] = 1
    inputs = {
        "words": random.integers(2, 9, (1, 7)),
        "mentions": mentions,
        "layers": random.normal(size=(1, 7, 3, 4)).astype("float32"),
    }
    padded = {
        name: np.pad(x, [(0, 0), (0, 3), *[(0, 0)] * (x.ndim - 2)]) for name, x in inputs.items()
    }
    expected = numpy(model(inputs)["label"])
    np.testing.assert_allclose(numpy(model(padded)["label"]), expected, atol=1e-5)
    assert np.abs(expected).max() > 1e-3
