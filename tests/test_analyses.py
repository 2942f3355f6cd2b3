"""The analyses of what the layers know, on small files with known answers."""

import json
import lzma
import runpy

import keras
import numpy as np
import pytest

import keras_elmo
from tests.example_runs import EXAMPLES, EXPERIMENTS, run, write_columns, write_trees

pytestmark = pytest.mark.extended

KEYS = {"money": "bank%1:14:00::", "water": "bank%1:17:01::", "first": "run%2:38:00::"}
TRAIN = [
    ("a1", "the {bank} lent money", "money"),
    ("a2", "the {bank} lent ice", "money"),
    ("a3", "a river {bank} of sand", "water"),
    ("a4", "they {run} away", "other"),
]


def write_senses(folder, name, sentences):
    """Write one text; a token in braces is an instance. Returns the path of the XML."""
    xml, gold = ["<corpus><text>"], []
    for number, sentence, sense in sentences:
        xml.append("<sentence>")
        for token in sentence.replace("_", " _ ").split():
            if token[0] != "{":
                xml.append(f'<wf lemma="x" pos="DET">{token}</wf>')
                continue
            part = "VERB" if "run" in token else "NOUN"
            token = token.strip("{}").replace("+", " ")
            lemma = token.split()[-1]
            xml.append(f'<instance id="{number}" lemma="{lemma}" pos="{part}">{token}</instance>')
            gold.append(f"{number} {KEYS.get(sense, 'run%2:99:00::')}\n")
        xml.append("</sentence>")
    (folder / f"{name}.data.xml").write_text("".join([*xml, "</text></corpus>"]))
    (folder / f"{name}.gold.key.txt").write_text("".join(gold))
    return folder / f"{name}.data.xml"


def test_word_senses(tmp_path, preset):
    train = write_senses(tmp_path, "train", TRAIN)
    test = write_senses(
        tmp_path,
        "test",
        [
            # As in train: nearest to itself.
            ("one.d000.s000.b1", "the {bank} lent money", "money"),
            ("one.d000.s000.b2", "a river {bank} of sand", "water"),
            # Not in train: the first sense, wrong.
            ("two.d000.s000.b3", "they {hide} away", "first"),
            ("two.d000.s000.b4", "they {run} away", "other"),
        ],
    )
    senses = tmp_path / "index.sense"
    senses.write_text(f"{KEYS['water']} 0001 1 9\n{KEYS['money']} 0002 2 9\nhide%2:1:1:: 3 1 0\n")
    given = ["--train", train, "--test", test, "--senses", senses, "--preset", preset]
    table = json.loads(run(EXAMPLES / "wsd.py", *given, "--json"))["f1"]
    assert list(table) == ["ALL", "one", "two"]
    contextual = {"layer 1": 100.0, "layer 2": 100.0, "average": 100.0}
    # Layer 0 is the same for every "bank": it cannot tell them apart.
    assert table["one"] == {"layer 0": 50.0, **contextual, "most frequent": 50.0}
    assert set(table["two"].values()) == {50.0} and table["ALL"]["layer 2"] == 75.0


def test_texts_senses_and_centroids(tmp_path, preset, load):
    """The biLM has read plain quotes and brackets; the corpora have those of the Treebank."""
    wsd = load("wsd")
    quoted = ("a1", "`` the -LRB- {bank} -RRB- '' of ` sand '", "water")
    path = write_senses(tmp_path, "text", [quoted])
    [(tokens, [instance])] = wsd.read_text(path)
    assert " ".join(tokens) == "\" the ( bank ) \" of ' sand '" and instance.first == 3
    (tmp_path / "text.gold.key.txt").write_text("other run%2:99:00::\n")
    with pytest.raises(ValueError, match="every instance of .*data.xml in .* none of 'a1'"):
        wsd.read_text(path)
    (tmp_path / "index.sense").write_text("long%3:00:02:: 01 1 9\nlong%5:00:00:x:00 02 2 3\n")
    assert wsd.first_senses(tmp_path / "index.sense") == {("long", "ADJ"): "long%3:00:02::"}
    with lzma.open(tmp_path / "senses.tsv.xz", "wt") as file:
        file.write("sense_key\tsense_number\tcount\na%1:0:0::\t2\t1\na%1:1:0::\t1\t1\n")
    assert wsd.first_senses(tmp_path / "senses.tsv.xz") == {("a", "NOUN"): "a%1:1:0::"}
    # The centroid of a sense is the mean over its tokens, of a compound over its words.
    sentences = [*TRAIN[:1], ("c", "a {savings+bank} lent money", "money"), *TRAIN[2:3]]
    read = wsd.read_text(write_senses(tmp_path, "text", sentences))
    assert read[1][0] == ["a", "savings", "bank", "lent", "money"]
    embedder = keras_elmo.Embedder(preset)
    units, place, of_lemma = wsd.centroids(embedder, read)
    assert dict(of_lemma["bank", "NOUN"]) == {KEYS["money"]: 2, KEYS["water"]: 1}
    one, two, _ = embedder.embed([tokens for tokens, _ in read])
    mean = (one[:, 1] + two[:, 1:3].mean(axis=1)) / 2
    mean = np.concatenate([mean, mean.mean(axis=0, keepdims=True)])
    expected = mean / np.linalg.norm(mean, axis=-1, keepdims=True)
    np.testing.assert_allclose(units[place[KEYS["money"]]], expected, atol=1e-6)


CONLLU = """# text = The dog did n't run
1\tThe\tthe\tDET\tDT\t_
2\tdog\tdog\tNOUN\tNN\t_
3-4\tdidn't\t_\t_\t_\t_
3\tdid\tdo\tAUX\tVBD\t_
4\tn't\tnot\tPART\tRB\t_
4.1\tx\tx\tX\tX\t_
5\trun\trun\tVERB\tVB\t_

1\tDogs\tdog\tNOUN\tNNS\t_
2\trun\trun\tNOUN\tNN\t_
"""


def test_parts_of_speech(tmp_path, preset):
    (tmp_path / "train.conllu").write_text(CONLLU)
    with lzma.open(tmp_path / "test.conllu.xz", "wt") as file:
        file.write(CONLLU)
    train, test = tmp_path / "train.conllu", tmp_path / "test.conllu.xz"
    given = ["--train", train, "--dev", train, "--test", test, "--preset", preset, "--epochs", 1]
    out = run(EXAMPLES / "parts_of_speech.py", *given, "--seeds", 1)
    rows = [line[:10].rstrip() for line in out.splitlines()]
    assert rows == ["layer 0", "layer 1", "layer 2", "mix"]
    assert all(0 <= float(line[10:].split()[0]) <= 100 for line in out.splitlines())
    read = runpy.run_path(str(EXAMPLES / "parts_of_speech.py"))["read_conllu"]
    sentences, tags = read(test, 3)
    assert sentences == [["The", "dog", "did", "n't", "run"], ["Dogs", "run"]]
    assert tags == ["DET", "NOUN", "AUX", "PART", "VERB", "NOUN", "NOUN"]
    assert read(test, 4, limit=1) == (sentences[:1], ["DT", "NN", "VBD", "RB", "VB"])


def test_a_probe_sees_its_layer_alone():
    """Layer 0 says nothing of the tag, layer 1 all; the mix has both."""
    probe = runpy.run_path(str(EXAMPLES / "parts_of_speech.py"))["probe"]
    tags = np.arange(40) % 4
    arrays = np.stack([np.ones((40, 4)), np.eye(4)[tags]], axis=1).astype("float16")
    parts = dict.fromkeys(("train", "dev", "test"), (arrays, tags))
    accuracies = [probe(parts, layer, 4, 1, 4, 8, 0.3) for layer in (0, 1, None)]
    assert accuracies == [25.0, 100.0, 100.0]


def test_layers_plot(tmp_path):
    pytest.importorskip("matplotlib")
    rows = ["layer 0", "layer 1", "layer 2"]
    senses = {row: 60 + j for j, row in enumerate(rows)} | {"most frequent": 64.7}
    (tmp_path / "wsd.json").write_text(json.dumps({"f1": {"ALL": senses}}))
    accuracy = {row: {"mean": 90 + j, "deviation": 0.1} for j, row in enumerate(rows)}
    (tmp_path / "pos.json").write_text(json.dumps({"accuracy": accuracy}))
    names = [tmp_path / name for name in ("wsd.json", "pos.json", "layers.png")]
    run(EXPERIMENTS / "layers_plot.py", *names)
    assert names[2].read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A tiny random BERT, as a preset of KerasHub."""
    models = pytest.importorskip("keras_hub").models
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] ada love ##lace saw london paris the smith left".split()
    tokenizer = models.BertTokenizer(vocabulary=words, lowercase=True)
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    backbone = models.BertBackbone(len(words), **sizes, max_sequence_length=17)
    preprocessor = models.BertMaskedLMPreprocessor(
        tokenizer, sequence_length=8, mask_selection_length=2
    )
    folder = tmp_path_factory.mktemp("bert") / "preset"
    models.BertMaskedLM(backbone, preprocessor).save_to_preset(folder)
    return str(folder)


@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables .*pooled_dense")
@pytest.mark.parametrize("task, given", [("ner", "both"), ("ner", "tuned"), ("sst5", "bert")])
def test_bert_layers(tmp_path, preset, bert, eager, task, given):
    folder, scores = tmp_path / "data", tmp_path / "scores.json"
    if task == "ner":
        folder.mkdir()
        for name in ("eng.train", "eng.testa", "eng.testb"):
            write_columns(folder / name, "IOB2")
    else:
        write_trees(folder)
    out = run(
        *(EXAMPLES / "bert_layers.py", "--task", task, "--data", folder, "--bert", bert),
        *("--input", given, "--preset", preset, "--epochs", 1, "--units", 4),
        *("--scores", scores),
    )
    written = json.loads(scores.read_text("utf-8"))
    assert (
        out.splitlines()[-1] == f"dev {100 * written['dev']:.1f} test {100 * written['test']:.1f}"
    )
    mixes = {"both": {"mix_of_elmo", "mix_of_bert"}, "bert": {"mix_of_bert"}, "tuned": set()}
    assert set(written["layer_weights"]) == mixes[given]
    assert all(len(weights) == 3 for weights in written["layer_weights"].values())


def test_words_have_the_vector_of_their_first_piece(bert, load):
    example = load("bert_layers")
    backbone = example.keras_hub.models.BertBackbone.from_preset(bert)
    tokenizer = example.keras_hub.models.BertTokenizer.from_preset(bert)
    sentences = [["Ada", "Lovelace", "left"], ["Paris"]]
    pieces = example.first_pieces(tokenizer, sentences, 9)
    long, short = example.represent(example.hidden_layers(backbone), *pieces)
    assert long.shape == (3, 3, 8) and short.shape == (1, 3, 8)
    ids = np.array([[tokenizer.token_to_id(x) for x in "[CLS] ada love ##lace left [SEP]".split()]])
    inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": np.ones_like(ids)}
    top = keras.ops.convert_to_numpy(backbone(inputs)["sequence_output"])[0]
    np.testing.assert_allclose(long[:, -1], top[[1, 2, 4]], atol=2e-3)
    with pytest.raises(ValueError, match="at most 5 word pieces. Received: one of 6, sentence 1"):
        example.first_pieces(tokenizer, sentences, 5)
    with pytest.raises(ValueError, match="Received: Sequential"):
        example.hidden_layers(keras.Sequential())


def test_words_in_context(tmp_path, preset):
    pytest.importorskip("matplotlib")
    text, static, picture = (tmp_path / x for x in ("text.txt", "vectors.txt", "bank.png"))
    text.write_text("a bank here\nsee a bank\nno word\n")
    static.write_text("5 2\na 2 0\nbank 4 2\nnear 6 2\nfar 0 1\nrear -1 0\n")
    given = "--text", text, "--preset", preset, "--plot", picture, "--static", static
    out = run(EXAMPLES / "words_in_context.py", "--word", "a bank", *given)
    # A word of two tokens is their mean, (3, 1), and neither of them.
    assert "\n  without context: near 1.00, far 0.32, rear -0.95\n" in out
    first, second, _ = keras_elmo.Embedder(preset).embed(
        [line.split() for line in text.read_text().splitlines()]
    )
    here, there = first[1, :2].mean(axis=0), second[1, 1:].mean(axis=0)
    cosine = here @ there / np.linalg.norm(here) / np.linalg.norm(there)
    assert f"\n  [a bank] here\n     {cosine:.2f}  see [a bank]\n" in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    # Without their mean, two vectors are opposite.
    centred = run(EXAMPLES / "words_in_context.py", "--word", "a bank", *given, "--centre")
    assert "\n  [a bank] here\n     -1.00  see [a bank]\n" in centred
    static.write_text("far -1 0\n")
    with pytest.raises(ValueError, match="--static expects vectors with 'bank'"):
        run(EXAMPLES / "words_in_context.py", "--word", "bank", *given)


def test_korean_words_in_context(tmp_path, preset):
    static = tmp_path / "vocab.txt"
    static.write_text("배\n바다\n배\n", "utf-8")  # a vocabulary, compared by layer 0
    given = "--language", "ko", "--preset", preset, "--word", "배", "잘 하 ㄴ다"
    out = run(EXAMPLES / "words_in_context.py", *given, "--static", static)
    assert out.startswith("배: 18 tokens, equal in layer 0\n  without context: 바다")
    assert "잘 하 ㄴ다: 12 tokens, " in out and "춤 도 [잘 하 ㄴ다] , 최고" in out
