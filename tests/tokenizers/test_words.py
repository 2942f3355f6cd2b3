"""Text to tokens."""

import pickle
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keras_elmo
from keras_elmo import WordTokenizer
from keras_elmo.tokenizers.text_tokens import TOKENIZERS, make_tokenizer
from tests.conftest import BACKEND, make_config, only_tensorflow


def make(name):
    pytest.importorskip("kiwipiepy" if name == "kiwi" else "nltk")
    return WordTokenizer(name)


@pytest.fixture(scope="module")
def kiwi():
    return make("kiwi")


def test_korean_morphemes(kiwi):
    assert kiwi("배가 고프다.") == ["배", "가", "고프", "다", "."]
    # Endings are plain letters, not combining letters, which keyboards do not write.
    assert kiwi("“잘한다”") == ['"', "잘", "하", "ㄴ다", '"']
    assert kiwi("ㅋㅋㅋ") == ["ㅋㅋㅋ"] and kiwi("<S>") == ["<", "S", ">"]
    assert kiwi("") == kiwi(" \n") == []
    # Text in pieces, or broken.
    text = "학교에서 배를 먹었다"
    assert kiwi(unicodedata.normalize("NFD", text)) == kiwi(text)
    assert kiwi("배\ud800를") == kiwi("배를") == ["배", "를"]


@given(st.text())
def test_korean_tokens_stand_between_spaces(kiwi, text):
    assert all(token.split() == [token] for token in kiwi(text))


def test_each_keeps_to_its_own():
    assert make("toktok")("Ein Film. Sehr lang!") == ["Ein", "Film", ".", "Sehr", "lang", "!"]
    assert make("penn")("She can't (“no”).") == ["She", "ca", "n't", "(", '"', "no", '"', ")", "."]
    assert make("toktok")("Das ist’s & a|b.") == ["Das", "ist", "'", "s", "&", "a", "|", "b", "."]
    assert make("toktok")("R& D\tcosts") == ["R&", "D", "costs"]
    assert WordTokenizer("letters")("MKT\u00a0V\nL\n") == ["M", "K", "T", "V", "L"]
    assert WordTokenizer("whitespace")("a\u00a0b  c\t“d.”\n") == ["a\u00a0b", "c", "“d.”"]
    assert WordTokenizer("whitespace")("a b\nc\r\n d\re\r") == ["a", "b", "c", "d\re"]


@pytest.mark.parametrize("name", TOKENIZERS)
def test_they_pickle_and_serve_threads(name):
    tokenizer = make(name)
    again = pickle.loads(pickle.dumps(tokenizer))
    texts = [f"배가 고프다 ({i}). Isn't it?" for i in range(40)]
    expected = [tokenizer(text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(again, texts)) == expected
    whole = WordTokenizer("penn", split_sentences=False, layer_name="words")
    whole = pickle.loads(pickle.dumps(whole))
    assert whole("A fine film. Too long!")[2] == "film." and whole.name == "words"


@pytest.mark.parametrize(
    "name, missing, error, message",
    [
        ("mecab", None, ValueError, "of penn, toktok, kiwi, letters, whitespace. Rec"),
        ("kiwi", "kiwipiepy", ImportError, r"needs Kiwi.*pip install -e .\.\[korean\]"),
        (
            "toktok",
            "nltk.tokenize.toktok",
            ImportError,
            r"^WordTokenizer\('toktok'\) needs NLTK.*p",
        ),
    ],
)
def test_errors(name, missing, error, message, monkeypatch):
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
        make_tokenizer.cache_clear()
    with pytest.raises(error, match=message):
        WordTokenizer(name)


TEXTS = ["A fine film. Too long!", "I “liked” it."]
TOKENS = [["A", "fine", "film", ".", "Too", "long", "!"], ["I", '"', "liked", '"', "it", "."]]


@pytest.mark.parametrize(
    "texts", [TEXTS, tuple(TEXTS), np.array(TEXTS), np.array(TEXTS, object), "Arrow"], ids=type
)
def test_columns_of_text(texts):
    if isinstance(texts, str):
        texts = pytest.importorskip("pyarrow").array(TEXTS)
    assert WordTokenizer("penn")(texts) == TOKENS


@pytest.mark.parametrize("bad", [None, float("nan"), "", " \n", 3, ["a"], b"\xff"])
def test_a_row_without_text(bad):
    with pytest.raises(ValueError, match="text in every row. Received: row 1: .* Drop other rows"):
        WordTokenizer("penn")(["A film.", bad])
    if not isinstance(bad, str | bytes | list):
        with pytest.raises(ValueError, match="list or column of str. Received: .*Pass one column"):
            WordTokenizer("penn")(bad)


@only_tensorflow
@pytest.mark.parametrize("name", ["penn", "letters", "whitespace"])
def test_tensors(name):
    import tensorflow as tf

    tokenizer = WordTokenizer(name)
    texts = [*TEXTS, "a b\r\n", "c\td\n", "a\nc\r\n d\re\r"]
    rows = tokenizer(tf.constant(texts))
    assert [[t.decode() for t in row] for row in rows.to_list()] == tokenizer(texts)
    lines = tf.data.Dataset.from_tensor_slices(TEXTS)
    assert [[t.decode() for t in row] for row in lines.map(tokenizer).as_numpy_iterator()] == (
        tokenizer(TEXTS)
    )


@only_tensorflow
def test_tensors_that_are_refused():
    import tensorflow as tf

    with pytest.raises(ValueError, match=r"strings of shape \(batch,\). Received: .*\(1, 1\)"):
        WordTokenizer("penn")(tf.constant([["a"]]))
    with pytest.raises(ValueError, match=r"WordTokenizer\('toktok'\) runs in Python only"):
        make("toktok")(tf.constant(["a"]))
    with pytest.raises(ValueError, match=r"strings of shape \(batch,\)"):
        WordTokenizer("penn")(keras.Input((None,), dtype="string"))


@only_tensorflow
def test_a_model_of_raw_text_leaves_python(tmp_path):
    """It serves with operations of TensorFlow alone."""
    import tensorflow as tf

    elmo = keras_elmo.ElmoLayer(make_config())
    model = keras.Sequential(
        [
            keras.Input((), dtype="string"),
            WordTokenizer("penn"),
            keras_elmo.CharacterTokenizer(13),
            elmo,
            keras_elmo.ScalarMix(),
            keras.layers.GlobalAveragePooling1D(),
        ]
    )
    expected = model.predict(tf.constant(TEXTS), verbose=0)
    model.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(tmp_path / "exported")
    np.testing.assert_allclose(exported.serve(tf.constant(TEXTS)), expected, atol=1e-6)
    graph = exported.signatures["serving_default"].graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    kinds = {node.op for node in nodes}
    assert "MatMul" in kinds and not [kind for kind in kinds if "PyFunc" in kind]


@pytest.mark.backends
@pytest.mark.skipif(BACKEND == "tensorflow", reason="TensorFlow takes it into the model")
def test_in_a_model_of_another_backend():
    with pytest.raises(ValueError, match="only on TensorFlow. Received: .*Call it before"):
        WordTokenizer("penn")(keras.Input((), dtype="string"))
