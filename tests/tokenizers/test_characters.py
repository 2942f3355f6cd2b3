import json

import keras
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keras_elmo import CharacterTokenizer
from tests import reference
from tests.conftest import BACKEND, SENTENCES, numpy, only_tensorflow, tokenize

pytestmark = pytest.mark.backends

# Random text can look like raw text.
any_tokens = pytest.mark.filterwarnings("ignore:CharacterTokenizer expects the tokens")
any_text = st.text(st.characters(), max_size=12)  # lone surrogates included
valid_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
sentences_of = lambda text: st.lists(st.lists(text, max_size=5), max_size=4)  # noqa: E731
sizes = st.integers(3, 20)


@any_tokens
@given(sentences_of(any_text), sizes)
@example([["<S>", "</S>", "", "\0", "\ud800x", "é" * 30]], 5)
def test_lists_agree_with_the_specification(sentences, max_characters):
    ids = tokenize(sentences, max_characters)
    assert ids.dtype == "int32"
    width = max(1, *map(len, sentences), 0)  # at least one column, of padding
    assert ids.shape == (len(sentences), width, max_characters)
    for row, sentence in zip(ids, sentences):
        expected = [reference.character_row(token, max_characters) for token in sentence]
        np.testing.assert_array_equal(
            row[: len(sentence)], np.reshape(expected, (-1, max_characters))
        )
        assert not row[len(sentence) :].any()


@only_tensorflow
@any_tokens
@given(sentences_of(valid_text), sizes)
@example([["<S>", "</S>", "", "\0", "a\0", "é" * 30], [], ["", ""]], 5)
def test_tensorflow_agrees_with_lists(sentences, max_characters):
    import tensorflow as tf

    tokenizer = CharacterTokenizer(max_characters)
    ragged = tf.ragged.constant(sentences, ragged_rank=1, dtype=tf.string)
    np.testing.assert_array_equal(
        numpy(tokenizer(ragged)), numpy(tokenizer(sentences)).reshape(tokenizer(ragged).shape)
    )


@only_tensorflow
@any_tokens
@given(sentences_of(valid_text), sizes)
def test_dense_tensors_and_arrays_agree(sentences, max_characters):
    """Trailing empty strings of a row are padding; other empty strings are tokens."""
    import tensorflow as tf

    width = max(map(len, sentences), default=0)
    dense = np.full((len(sentences), width), "", object)
    for row, sentence in zip(dense, sentences):
        row[: len(sentence)] = sentence
    stripped = [
        s[: max((n for n, token in enumerate(s, 1) if token), default=0)] for s in sentences
    ]
    tokenizer = CharacterTokenizer(max_characters)
    found = numpy(tokenizer(stripped))
    expected = np.pad(found, [(0, 0), (0, max(1, width) - found.shape[1]), (0, 0)])
    np.testing.assert_array_equal(numpy(tokenizer(dense)), expected)
    tensor = tf.constant(dense.tolist(), tf.string, shape=dense.shape)
    np.testing.assert_array_equal(numpy(tokenizer(tensor)), expected)


def test_arrays_bytes_tuples_and_columns():
    words = [["a", "", "bc"], ["d", "", ""]]
    expected = tokenize([["a", "", "bc"], ["d"]])
    for kind in ("U", "S", object):
        np.testing.assert_array_equal(tokenize(np.array(words, kind)), expected)
    np.testing.assert_array_equal(tokenize([np.array(s) for s in words]), tokenize(words))
    jagged = np.array([["a", "", "bc"], ["d"]], dtype=object)
    np.testing.assert_array_equal(tokenize(jagged), expected)
    np.testing.assert_array_equal(tokenize(((b"\xc3\xa9", "</S>"),)), tokenize([["é", "</S>"]]))
    column = pytest.importorskip("pandas").Series(SENTENCES)
    np.testing.assert_array_equal(tokenize(column), tokenize(SENTENCES))


def test_tf_data():
    """Inside tf.data the result is a TensorFlow tensor under every Keras backend."""
    tf = pytest.importorskip("tensorflow")
    tokenizer = CharacterTokenizer()
    data = tf.data.Dataset.from_tensor_slices(tf.ragged.constant(SENTENCES)).batch(2).map(tokenizer)
    first, second = data
    np.testing.assert_array_equal(first.numpy(), tokenize(SENTENCES[:2]))
    np.testing.assert_array_equal(second.numpy(), tokenize(SENTENCES[2:]))
    assert data.element_spec.shape.as_list() == [None, None, 50]
    eager = CharacterTokenizer()(tf.ragged.constant(SENTENCES))  # a tensor of Keras
    assert keras.ops.is_tensor(eager)
    np.testing.assert_array_equal(numpy(eager), tokenize(SENTENCES))


@pytest.mark.parametrize(
    "sentences",
    [
        [["A fine film ."]],
        np.array([["A fine film ."], ["Dull ."]]),
        np.array([["A fine film ."], ["Dull ."]], object),
        [["A", "fine", "film."], ["So", "dull!"], ["a", "b"], []],
        [["A", "fine", "film."], ["So", "dull!"]],
    ],
)
def test_raw_text_in_place_of_tokens(sentences):
    expected = "Received: sentences that look like raw text: .* WordTokenizer.from_preset"
    with pytest.warns(UserWarning, match=expected) as warned:
        CharacterTokenizer()(sentences)
    assert warned[0].filename == __file__


def test_tokens_with_full_stops():
    for sentences in (
        [["New York", "is", "big."], ["No", "."]],
        [["Hi", "Inc."]],
        [["."], [""], ["..."], [" "], ["a\u00a0b"]],
    ):
        CharacterTokenizer()(sentences)  # a warning is an error here


def test_config_round_trip_and_preset(tiny_preset):
    tokenizer = CharacterTokenizer(np.int64(20), name="characters")
    again = CharacterTokenizer.from_config(json.loads(json.dumps(tokenizer.get_config())))
    assert again.max_characters == 20 and again.name == "characters"
    assert CharacterTokenizer.from_preset(tiny_preset).max_characters == 13
    assert CharacterTokenizer.from_preset(tiny_preset, max_characters=9).max_characters == 9


@pytest.mark.parametrize(
    "bad, received",
    [
        (["a", "flat", "list"], "'a' of type str. Pass lists of lists"),
        ("text", "'text' of type str. Pass lists of lists"),
        ([[["a"]]], r"\['a'\] of type list"),
        ([["a", 3]], "3 of type int"),
        ([["a"], None], "None of type NoneType"),
        (np.array(["a", "b"]), ".*'a'.* of type str_"),
        (np.array("a"), ".*'a'.* of type ndarray"),
        (np.zeros((2, 3)), ".*0.0.* of type float"),
        (np.array(["a", "b"], object), "'a' of type str"),
    ],
)
def test_bad_input(bad, received):
    with pytest.raises(ValueError, match=f"sentence to be a list of tokens. Received: {received}"):
        CharacterTokenizer()(bad)


def test_bad_tensors():
    tf = pytest.importorskip("tensorflow")
    with pytest.raises(ValueError, match=r"of shape \(batch, tokens\). Received: dtype=string"):
        CharacterTokenizer()(tf.constant(["flat"]))
    with pytest.raises(ValueError, match="expects strings .* Received: dtype=int32"):
        CharacterTokenizer()(tf.constant([[1]]))


@pytest.mark.parametrize("bad", [2, 0, "50", 5.0, True])
def test_bad_max_characters(bad):
    with pytest.raises(ValueError, match="max_characters to be a whole number, 3 or more"):
        CharacterTokenizer(max_characters=bad)


def test_symbolic():
    if BACKEND == "tensorflow":
        ids = CharacterTokenizer(9)(keras.Input((None,), dtype="string"))
        assert ids.shape == (None, None, 9) and ids.dtype == "int32"
        with pytest.raises(ValueError, match="strings of shape .* Received: dtype=float32"):
            CharacterTokenizer()(keras.Input((None,)))
    else:
        with pytest.raises(ValueError, match="part of a model only on TensorFlow"):
            CharacterTokenizer()(keras.Input((None,), dtype="string"))
