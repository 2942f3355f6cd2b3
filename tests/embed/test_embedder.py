import collections
import gc
import pickle
import sys
import weakref

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_elmo import ElmoLayer, Embedder
from keras_elmo.embed.embedder import length_batches
from tests import reference
from tests.conftest import (
    BACKEND,
    SENTENCES,
    make_arrays,
    make_config,
    numpy,
    only_tensorflow,
    tokenize,
)
from tests.embed.conftest import MANY, assert_close

pytestmark = pytest.mark.backends("torch")


def expected(sentence):
    return reference.elmo_layers(sentence, make_config().to_options(), make_arrays(make_config()))


def test_agrees_with_the_specification(embedder):
    for array, sentence in zip(embedder.embed(MANY), MANY, strict=True):
        assert array.dtype == "float32" and array.shape == (3, len(sentence), 12)
        np.testing.assert_allclose(np.moveaxis(array, 0, 1), expected(sentence), atol=1e-5)


@pytest.mark.parametrize("layers", ["all", "top", "average"])
def test_batched_and_single_cached_and_not_are_the_same(tiny_preset, layers):
    """All of them equal ElmoLayer."""
    output = {"all": "layers"}.get(layers, layers)
    layer = ElmoLayer.from_preset(tiny_preset, output=output)
    together = Embedder(tiny_preset).embed(MANY, layers)
    uncached = Embedder(tiny_preset, cache=1, batch_tokens=40)
    for array, again, sentence in zip(together, uncached.embed(MANY, layers), MANY, strict=True):
        alone = uncached.embed([sentence], layers)[0]
        inside = numpy(layer(tokenize([sentence], 13)))[0, : len(sentence)]
        inside = np.moveaxis(inside, 1, 0) if layers == "all" else inside
        # The caller owns the array: it keeps no batch in memory.
        assert array.flags.owndata and array.flags.c_contiguous
        for other in (again, alone, inside):
            np.testing.assert_allclose(array, other, atol=1e-5)


def test_tokens_and_means(embedder):
    words = ["fox", "", "fox", "<S>", "x" * 30]
    np.testing.assert_allclose(embedder.embed_tokens(words), expected(words)[:, 0, :6], atol=1e-5)
    assert embedder.embed_tokens([]).shape == (0, 6)
    means = embedder.embed_means(SENTENCES)
    assert means.shape == (4, 12) and not means[3].any()
    np.testing.assert_allclose(means[0], expected(SENTENCES[0]).mean((0, 1)), atol=1e-5)
    assert embedder.embed_means(SENTENCES, "all").shape == (4, 3, 12)
    units = embedder.embed_means(SENTENCES, normalize=True)
    lengths = np.linalg.norm(means, axis=-1, keepdims=True)
    np.testing.assert_allclose(units * lengths, means, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(units, axis=-1), [1, 1, 1, 0], rtol=1e-6)


def test_padding_and_nothing(embedder):
    """Arrays are padded, and lists are not."""
    padded = np.array([["Two", "tokens", ""], ["One", "", ""]])
    assert_close(embedder.embed(padded), embedder.embed([["Two", "tokens"], ["One"]]), atol=1e-5)
    assert embedder.embed([["One", ""]])[0].shape == (3, 2, 12)
    assert embedder.embed([]) == []
    assert [a.shape for a in embedder.embed([[], []], "top")] == [(0, 12), (0, 12)]


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "bfloat16"])
def test_the_global_dtype_policy_does_not_count(tiny_preset, embedder, policy):
    before = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy(policy)
        found = Embedder(tiny_preset).embed(MANY)
    finally:
        keras.config.set_dtype_policy(before)
    assert_close(found, embedder.embed(MANY))


@pytest.mark.parametrize("policy", [None, "mixed_bfloat16", "bfloat16"])
def test_half_precision(tiny_preset, embedder, policy):
    """By an argument for a preset; a layer has a dtype already."""
    layer = ElmoLayer.from_preset(tiny_preset, dtype=policy or "bfloat16")
    ours = Embedder(layer) if policy else Embedder(tiny_preset, dtype="bfloat16")
    inside = np.moveaxis(numpy(layer(tokenize([MANY[0]], 13)))[0].astype("float32"), 1, 0)
    exact, found = embedder.embed(MANY), ours.embed(MANY)
    assert_close(found, exact, atol=0.1)
    assert found[0].dtype == "float32" and np.abs(found[0] - exact[0]).max() > 1e-4
    np.testing.assert_allclose(found[0], inside, atol=0.02)
    if BACKEND != "jax":  # XLA may leave out the last rounding.
        # All numbers fit in bfloat16: the products were computed in it.
        assert not (ours.embed_tokens(["fox"]).view("uint32") & 0xFFFF).any()


def test_words_are_computed_once_until_the_limit(embedder):
    ours = Embedder(embedder.elmo, batch_tokens=8, cache=5)
    represent, rows = ours._engine.represent, []
    ours._engine.represent = lambda ids: rows.append(len(ids)) or represent(ids)
    ours.embed([["a", "b"], ["b", "a"]])
    ours.embed([["a", "c", "a", "b"], [b"c", "a"]])
    ours.embed([["c", "b"]])
    assert rows == [4, 1]  # a, b, <S> and </S>; and c
    found = ours.embed_tokens(["d", "a"])  # adding d removes all others
    np.testing.assert_allclose(found, embedder.embed_tokens(["d", "a"]), atol=1e-6)
    np.testing.assert_array_equal(ours.embed_tokens(["d"]), found[:1])
    assert rows[2:] == [1] and len(ours._table) == 1
    ours.embed_tokens(["a", *"efghij"])
    assert rows[3:] == [7] and len(ours._table) == 5
    # A view would keep the rows of all tokens of its batch in memory.
    assert all(row.base is None for row in ours._table._remembered.values())


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 200))
def test_length_batches(lengths, budget):
    batches = length_batches(lengths, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[i] for i in batch) + 2
        assert len(batch) == 1 or len(batch) * longest <= budget


def test_an_embedder_copies_the_weights_of_its_layer(tiny_preset):
    pytest.importorskip("onnxruntime")
    engines = ("keras", "onnxruntime")
    layer = ElmoLayer.from_preset(tiny_preset, trainable_bilm=True)
    embedders = [Embedder(layer, engine=engine) for engine in engines]
    before = [embedder.embed(SENTENCES) for embedder in embedders]
    inputs = keras.Input((None, 13), dtype="int32")
    model = keras.Model(inputs, keras.layers.Dense(1)(layer(inputs)[:, :, -1]))
    model.compile(keras.optimizers.Adam(0.05), "mse", jit_compile=False)
    model.fit(tokenize([["fox", "quick"]], 13), np.ones((1, 2, 1)), verbose=0)
    words = [["unseen", "words"]]
    expected = Embedder(tiny_preset).embed(words)[0]
    inside = np.moveaxis(numpy(layer(tokenize(words, 13)))[0], 1, 0)
    assert np.abs(inside - expected).max() > 1e-2
    for engine, embedder, arrays in zip(engines, embedders, before, strict=True):
        assert_close(embedder.embed(SENTENCES), arrays)
        np.testing.assert_allclose(embedder.embed(words)[0], expected, atol=1e-5)
        new = Embedder(layer, engine=engine)
        np.testing.assert_allclose(new.embed(words)[0], inside, atol=1e-5)


def test_the_weights_and_graphs_are_freed_with_the_embedder(tiny_preset):
    """TensorFlow keeps a graph with a written-out gradient forever."""
    layer = ElmoLayer.from_preset(tiny_preset)
    embedder = Embedder(layer, engine="keras")
    embedder.embed(SENTENCES)
    assert embedder.elmo is not layer
    itself = weakref.ref(embedder)
    kept = [weakref.ref(variable) for variable in embedder.elmo.bilm.variables]
    if BACKEND == "tensorflow":
        for program in embedder._engine._programs.values():
            kept.append(weakref.ref(program.get_concrete_function().graph))
        del program
    gc.disable()
    del embedder
    gc.enable()
    assert itself() is None
    gc.collect()
    assert all(ref() is None for ref in kept)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"cache": 0}, "cache to be a whole number, 1 or more. Received: cache=0"),
        ({"cache": True}, "cache to be a whole number, 1 or more. Received: cache=True"),
        ({"batch_tokens": 0.5}, "batch_tokens to be a whole number"),
        ({"dtype": "float64"}, "'auto' with .* int8. Received: engine='auto', dtype='float64'"),
        ({"engine": "onnx"}, "'keras' with dtype float32 or .* Received: engine='onnx', dtype='fl"),
        ({"engine": "keras", "dtype": "int8"}, "Received: engine='keras', dtype='int8'"),
        ({"engine": "onnxruntime", "dtype": "bfloat16"}, "'onnxruntime' with .* dtype='bfloat16'"),
    ],
)
def test_bad_arguments(tiny_preset, arguments, message):
    with pytest.raises(ValueError, match=message):
        Embedder(tiny_preset, **arguments)


def test_bad_calls(embedder):
    for call in (embedder.embed, embedder.embed_means):
        with pytest.raises(ValueError, match="every sentence to be a list of tokens"):
            call(["a", "flat", "list"])
        with pytest.raises(ValueError, match="a batch of sentences, .* Received: 5 of type int"):
            call(5)
    with pytest.raises(ValueError, match="every sentence to be a list of tokens"):
        embedder.embed_tokens("word")
    with pytest.raises(ValueError, match="tokens to be str or UTF-8 bytes"):
        embedder.embed([[["nested"]]])
    with pytest.raises(ValueError, match="a preset, a path or an ElmoLayer. Received: 5"):
        Embedder(5)
    with pytest.raises(ValueError, match="ElmoLayer has no weights before it is built"):
        Embedder(ElmoLayer(make_config()))
    with pytest.raises(ValueError, match="options only with a preset: .* Received: options='o.js"):
        Embedder(embedder.elmo, options="o.json")


def test_raw_texts(monkeypatch):
    embedder = Embedder.from_preset("elmo_mini_en")
    texts = ["A fine film. Too long!", "It rained."]
    tokens = embedder.tokenize(texts)
    assert tokens == [["A", "fine", "film", ".", "Too", "long", "!"], ["It", "rained", "."]]
    assert [array.shape for array in embedder.embed(tokens)] == [(3, 7, 256), (3, 3, 256)]
    copied = pickle.dumps(embedder)
    monkeypatch.setattr("keras_elmo.presets.bundled", dict)  # the preset is not read again
    assert pickle.loads(copied).tokenize(texts[1]) == embedder.tokenize(texts[1]) == tokens[1]
    with pytest.raises(ValueError, match="list of tokens. .* call WordTokenizer or Embedder.tok"):
        embedder.embed(texts)
    text = "<Embedder: 3 layers of width 256, engine 'keras', float32>"
    with pytest.raises(ValueError, match=f"records its tokenizer. Received: {text}. Call a Word"):
        Embedder(embedder.elmo).tokenize(texts)
    # Any iterable of token lists will do.
    for sentences in (iter(tokens), collections.UserList(tokens)):
        assert_close(embedder.embed(sentences), embedder.embed(tokens))
    assert_close(embedder.embed(embedder.tokenize(texts[1])), embedder.embed(tokens[1:]))


def test_a_bar_for_long_calls(embedder, capsys, monkeypatch):
    embedder.embed(SENTENCES)
    embedder.embed(SENTENCES, progress=False)
    assert capsys.readouterr().err == ""
    embedder.embed_means(SENTENCES, progress=True)
    assert f"{len(SENTENCES)}/{len(SENTENCES)}" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stderr", None)  # as in a process without a console
    assert len(embedder.embed(SENTENCES, progress=True)) == len(SENTENCES)


@only_tensorflow
def test_several_embedders_log_no_retracing(tiny_preset, caplog):
    import tensorflow as tf

    tf.get_logger().propagate = True
    for _ in range(4):
        ours = Embedder(tiny_preset)
        for layers in ("all", "top", 1):
            ours.embed(SENTENCES, layers)
    assert "retracing" not in caplog.text
