"""An Embedder answers with the weights that its layer has now."""

import keras
import numpy as np
import pytest

from keras_elmo import ElmoLayer, Embedder
from keras_elmo.embed.weight_values import WeightValues
from tests.conftest import BACKEND, make_arrays, make_config, tokenize, write_preset

WORDS = ["fox", "quick", "나는"]


@pytest.fixture(scope="module")
def other_preset(tmp_path_factory):
    directory = tmp_path_factory.mktemp("other")
    write_preset(directory, make_config(), make_arrays(make_config(), seed=1))
    return directory


def load_preset(layer, preset, folder):
    layer.load_preset(preset)


def set_weights(layer, preset, folder):
    layer.set_weights(ElmoLayer.from_preset(preset).get_weights())


def assign_one(layer, preset, folder):
    kernel = layer.bilm.char_cnn.convolutions[0][0]
    kernel.assign(kernel * 2)


def load_weights(layer, preset, folder):
    def model(elmo):
        inputs = keras.Input((None, 13), dtype="int32")
        return keras.Model(inputs, elmo(inputs))

    saved = model(ElmoLayer.from_preset(preset, name=layer.name))
    saved.save_weights(folder / "m.weights.h5")
    model(layer).load_weights(folder / "m.weights.h5")


def train(layer, preset, folder):
    inputs = keras.Input((None, 13), dtype="int32")
    fit(inputs, layer(inputs)[:, :, -1], run_eagerly=True)


def train_compiled(layer, preset, folder):
    inputs = keras.Input((None, 13), dtype="int32")
    fit(inputs, layer.bilm.char_cnn(inputs))


def train_with_xla(layer, preset, folder):
    inputs = keras.Input((None, 13), dtype="int32")
    fit(inputs, layer.bilm.char_cnn(inputs), jit_compile=BACKEND == "tensorflow")


def fit(inputs, representations, **how):
    model = keras.Model(inputs, keras.layers.Dense(1)(representations))
    model.compile(keras.optimizers.Adam(0.05), "mse", **{"jit_compile": False, **how})
    model.fit(tokenize([WORDS], 13), np.ones((1, 3, 1)), epochs=2, verbose=0)


def change_tensor(layer, preset, folder):
    """Write past Keras."""
    kernel = layer.bilm.char_cnn.projection_kernel
    if BACKEND == "torch":
        kernel.value.data.mul_(2)
    elif BACKEND == "tensorflow":
        kernel.value.scatter_nd_update([[0, 1]], [7.0])
    else:
        kernel._value = kernel._value * 2


@pytest.mark.parametrize(
    "change",
    [
        load_preset,
        set_weights,
        assign_one,
        load_weights,
        *([train] if BACKEND != "jax" else []),  # which would compile it for a minute
        train_compiled,
        train_with_xla,
        change_tensor,
    ],
)
def test_whatever_changed_them(tiny_preset, other_preset, tmp_path, change):
    layer = ElmoLayer.from_preset(tiny_preset, trainable_bilm=True)
    embedder = Embedder(layer)
    before = embedder.embed([WORDS])[0]
    change(layer, other_preset, tmp_path)
    after, tokens = embedder.embed([WORDS])[0], embedder.embed_tokens(WORDS)
    new = Embedder(layer)
    np.testing.assert_allclose(after, new.embed([WORDS])[0], atol=1e-6)
    np.testing.assert_allclose(tokens, new.embed_tokens(WORDS), atol=1e-6)
    assert np.abs(after - before).max() > 1e-2
    layer.load_preset(tiny_preset)
    np.testing.assert_allclose(embedder.embed([WORDS])[0], before, atol=1e-6)


def test_a_token_cache_ends_with_the_weights_it_belongs_to(tiny_preset, other_preset, tmp_path):
    files = tmp_path / "vocab.txt", tmp_path / "tokens.hdf5"
    layer = ElmoLayer.from_preset(tiny_preset)
    Embedder(layer).write_token_cache(WORDS, *files)
    cached = Embedder(layer, token_cache=files)
    layer.load_preset(other_preset)
    expected = Embedder(other_preset)
    np.testing.assert_allclose(cached.embed_tokens(WORDS), expected.embed_tokens(WORDS), atol=1e-6)


def test_rows_of_words_belong_to_the_weights_of_their_table(tiny_preset, other_preset):
    """Also if the weights change, and change back, while the words are computed."""
    layer = ElmoLayer.from_preset(tiny_preset)
    embedder = Embedder(layer)
    expected = Embedder(layer).embed_tokens(WORDS)
    represent = embedder._engine.represent

    def change_meanwhile(ids, weights):
        layer.load_preset(other_preset)
        try:
            return represent(ids, weights)
        finally:
            layer.load_preset(tiny_preset)

    embedder._engine.represent = change_meanwhile
    embedder.embed_tokens(WORDS)
    embedder._engine.represent = represent
    np.testing.assert_allclose(embedder.embed_tokens(WORDS), expected, atol=1e-6)


def test_a_layer_that_waits_for_its_weights_does_not_answer(tiny_preset, tmp_path):
    def model(elmo):
        inputs = keras.Input((None, 13), dtype="int32")
        return keras.Model(inputs, elmo(inputs))

    layer = ElmoLayer.from_preset(tiny_preset, save_bilm=False, name="elmo")
    model(layer).save_weights(tmp_path / "m.weights.h5")
    blank = ElmoLayer(make_config(), save_bilm=False, name="elmo")
    waiting = model(blank)
    embedder = Embedder(blank)
    waiting.load_weights(tmp_path / "m.weights.h5")
    with pytest.raises(ValueError, match="has no weights yet. Call load_preset or load_hdf5"):
        embedder.embed([WORDS])


def test_embed_file_refuses_weights_that_change_under_it(tiny_preset, tmp_path):
    layer = ElmoLayer.from_preset(tiny_preset)
    embedder = Embedder(layer)
    contextualize = embedder._engine.contextualize

    def change(*arguments):
        layer.bilm.lstms[0].bias.assign(layer.bilm.lstms[0].bias + 1)
        return contextualize(*arguments)

    embedder._engine.contextualize = change
    (tmp_path / "in.txt").write_text("a b\n")
    with pytest.raises(ValueError, match="weights of its layer to stay .* that changed meanwhile"):
        embedder.embed_file(tmp_path / "in.txt", tmp_path / "out.hdf5", progress=False)
    assert [path.name for path in (tmp_path / "out.hdf5.parts").iterdir()] == ["settings.json"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weight_values(dtype):
    variable = keras.Variable(np.array([[1.0, np.nan], [0.0, 2.0]]), dtype=dtype)
    now = WeightValues([variable])
    assert now.are_current()
    variable.assign(keras.ops.copy(variable.value))  # the same values, NaN too, elsewhere
    assert now.are_current() or BACKEND == "jax"
    kept = keras.ops.convert_to_numpy(now.values[0]).astype("float32")
    variable.assign([[1.0, np.nan], [0.0, 2.5]])
    assert not now.are_current()
    found = keras.ops.convert_to_numpy(now.values[0]).astype("float32")
    np.testing.assert_array_equal(found, kept)
