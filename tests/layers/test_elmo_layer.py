"""ElmoLayer against the NumPy specification, for many architectures."""

import json

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_elmo import CharacterTokenizer, CodePointTokenizer, ElmoLayer, ScalarMix
from keras_elmo.alphabets import SPECIAL_CHARACTERS, SPECIAL_WORDS, CodePoints
from tests import reference
from tests.conftest import (
    BACKEND,
    SENTENCES,
    make_arrays,
    make_config,
    numpy,
    only_tensorflow,
    tokenize,
    write_preset,
)

pytestmark = pytest.mark.backends


def make_code_points(characters, words=()):
    return CodePoints(
        characters=(*SPECIAL_CHARACTERS, *characters),
        words=(*SPECIAL_WORDS, *words) if words else (),
        word_dim=3 if words else 0,
    )


VARIANTS = {
    "standard": {},
    "no_highway": {"n_highway": 0},
    "three_highways": {"n_highway": 3},
    "no_cnn_projection": {"projection_dim": 17, "lstm_dim": 19},
    "no_lstm_projection": {"lstm_dim": 6, "projection_clip": 0.1},
    "one_layer": {"n_layers": 1},
    "three_layers": {"n_layers": 3},
    "no_residual": {"use_skip_connections": False},
    "no_cell_clip": {"cell_clip": None},
    "no_projection_clip": {"projection_clip": None},
    "tight_clips": {"cell_clip": 0.3, "projection_clip": 0.2},
    "tanh": {"activation": "tanh"},
    "many_characters": {"max_characters_per_token": 60},
    "widest_filter_takes_all": {"filters": ((13, 4), (1, 2))},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_agrees_with_the_specification(changes, tmp_path):
    config = make_config(**changes)
    arrays = make_arrays(config)
    layer = ElmoLayer.from_hdf5(*write_preset(tmp_path, config, arrays))
    assert layer.built
    most = config.max_characters_per_token
    found = numpy(layer(tokenize(SENTENCES, most)))
    for row, sentence in enumerate(SENTENCES):
        expected = reference.elmo_layers(sentence, config.to_options(), arrays)
        np.testing.assert_allclose(found[row, : len(sentence)], expected, atol=1e-5, rtol=1e-5)
        assert not found[row, len(sentence) :].any()


def test_outputs(tiny_preset):
    ids = tokenize(SENTENCES, 13)
    get = lambda **kwargs: ElmoLayer.from_preset(tiny_preset, **kwargs)(ids)  # noqa: E731
    layers = numpy(get())
    outputs = get(output="all")
    everything = {name: numpy(x) for name, x in outputs.items()}
    assert set(everything) == {"token", "forward_1", "forward_2", "backward_1", "backward_2"}
    np.testing.assert_array_equal(reference.stacked(everything, 2), layers)
    top = get(output="top")
    np.testing.assert_array_equal(numpy(top), layers[:, :, 2])
    for x in (*outputs.values(), top):
        np.testing.assert_array_equal(numpy(x._keras_mask), ids.any(-1))
    np.testing.assert_allclose(numpy(get(output="average")), layers.mean(2), atol=1e-6)
    mixed = 0.2 * layers[:, :, 0] + 0.8 * layers[:, :, 2]
    np.testing.assert_allclose(numpy(get(output=[0.2, 0, 0.8])), mixed, atol=1e-6)
    for layer in range(-3, 3):
        np.testing.assert_array_equal(numpy(get(output=np.int64(layer))), layers[:, :, layer])
    assert json.dumps(ElmoLayer(make_config(), output=np.int64(-3)).get_config())


@pytest.fixture(scope="module")
def tiny_layer(tiny_preset):
    return ElmoLayer.from_preset(tiny_preset)


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@pytest.mark.filterwarnings("ignore:CharacterTokenizer expects the tokens")
@pytest.mark.backends("torch")
@settings(max_examples=12)
@given(
    st.lists(st.lists(words, max_size=5), min_size=1, max_size=4),
    st.integers(0, 3),
    st.integers(0, 2),
)
def test_padding_and_batch_mates_do_not_matter(tiny_layer, batch, more_tokens, more_rows):
    """Rows need the longest token, both markers and the width of the widest filter."""
    ids = tokenize(batch, 13)
    longest = max([3, *(len(t.encode()) + 2 for s in batch for t in s)])
    padded = np.pad(ids, [(0, more_rows), (0, more_tokens), (0, 0)])
    together = numpy(tiny_layer(padded[:, :, : longest + 4]))
    for row, sentence in enumerate([*batch, *[[]] * more_rows]):
        alone = numpy(tiny_layer(tokenize([sentence], 13)))
        n = len(sentence)
        np.testing.assert_allclose(together[row, :n], alone[0, :n], atol=1e-6)
        assert not together[row, n:].any()


def test_a_mask_on_the_ids_is_ignored_without_a_warning(tiny_layer):
    """A warning is an error here."""
    ids = tokenize(SENTENCES, 13)
    masked = keras.layers.Masking()(ids.astype("float32"))
    found, expected = tiny_layer(masked), tiny_layer(ids)
    np.testing.assert_array_equal(numpy(found._keras_mask), numpy(expected._keras_mask))
    inputs = keras.Input((None, 13))
    model = keras.Model(inputs, tiny_layer(keras.layers.Masking()(inputs)))
    np.testing.assert_array_equal(numpy(model(ids)), numpy(expected))


@pytest.mark.skipif(BACKEND != "jax", reason="Only JAX compiles eager calls")
def test_eager_shapes_share_what_jax_compiles(tiny_preset):
    import jax

    layer = ElmoLayer.from_preset(tiny_preset, output="all", keep_boundaries=True)
    whole = tokenize([["a"] * 8, ["b"] * 7, ["c"] * 5, ["d"]], 13)
    expected = layer(whole)
    # JAX compiles a copy for NumPy arrays of a new shape, unless they have a dtype.
    shapes = (4, 7), (3, 5), (3, 8)
    tensors = [keras.ops.convert_to_tensor(whole[:n, :length], "int32") for n, length in shapes]
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **__: compiled.append(event) if "backend_compile" in event else None
    )
    for ids in tensors:
        found = layer(ids)
        for x in found.values():
            assert x.shape[:2] == x._keras_mask.shape == (ids.shape[0], ids.shape[1] + 2)
    assert not compiled
    for name, x in found.items():
        np.testing.assert_array_equal(numpy(x), numpy(expected[name])[:3])
    assert {x.shape[:2] for x in layer(whole[:, :0]).values()} == {(4, 2)}


@pytest.mark.skipif(BACKEND != "jax", reason="Only JAX has constants in compiled functions")
def test_ids_as_constants_of_a_compiled_function(tiny_preset):
    """The ids have values, but the weights have none yet."""
    import jax

    layer = ElmoLayer.from_preset(tiny_preset, trainable_bilm=True, output="top")
    ids = tokenize([["a", "b"], ["c"]], 13)
    values = [v.value for v in layer.trainable_variables]
    found = jax.jit(lambda weights: layer.stateless_call(weights, [], ids)[0])(values)
    assert found.shape == (2, 2, 12) and numpy(found).any(-1).tolist() == [[1, 1], [1, 0]]


@pytest.mark.skipif(BACKEND == "torch", reason="predict of PyTorch is eager")
def test_a_stateful_layer_refuses_a_compiled_call(tiny_preset):
    model = keras.Sequential([ElmoLayer.from_preset(tiny_preset, stateful=True)])
    with pytest.raises(ValueError, match=r"stateful=True\) expects eager calls, .* stateful=False"):
        model.predict(tokenize(SENTENCES, 13), verbose=0)


@pytest.mark.parametrize("trainable_bilm", [False, True])
def test_freezing(tiny_preset, trainable_bilm):
    """fit moves the weights of the biLM only with trainable_bilm=True."""
    elmo = ElmoLayer.from_preset(tiny_preset, trainable_bilm=trainable_bilm, trainable=True)
    ids = tokenize(SENTENCES, 13)
    if BACKEND == "torch":  # The activations of a frozen biLM are freed.
        assert elmo(ids).requires_grad == trainable_bilm
    model = keras.Sequential([keras.Input((None, 13), dtype="int32"), elmo, ScalarMix()])
    model.add(keras.layers.GlobalAveragePooling1D())
    model.add(keras.layers.Dense(3))
    for trainable in (False, True):
        model.trainable = trainable
        for layer in model._flatten_layers():
            layer.trainable = trainable
    assert len(elmo.trainable_weights) == (len(elmo.weights) if trainable_bilm else 0)
    before = elmo.get_weights()
    model.compile("sgd", "mse")
    model.fit(ids, np.ones((4, 3)), verbose=0)
    moved = [np.abs(a - b).max() > 0 for a, b in zip(before, elmo.get_weights())]
    assert all(moved) if trainable_bilm else not any(moved)
    frozen = 0 if trainable_bilm else elmo.count_params()
    summary = []
    model.summary(print_fn=lambda line, **_: summary.append(line))
    assert f"Non-trainable params: {frozen:,}" in "\n".join(summary)


def test_trainable_false_survives_saving(tiny_preset, tmp_path):
    """Layers that are made in ``build`` must not be trainable then."""
    elmo = ElmoLayer.from_preset(tiny_preset, trainable_bilm=True, name="elmo")
    model = keras.Sequential([keras.Input((None, 13), dtype="int32"), elmo, ScalarMix()])
    elmo.trainable = False
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert len(again.trainable_weights) == len(model.trainable_weights) == 2
    again.get_layer("elmo").trainable = True
    assert len(again.trainable_weights) == 2 + len(elmo.weights)


@pytest.mark.parametrize("code_points", [None, make_code_points("abc", ("one", "two"))])
def test_saved_files(code_points, tmp_path):
    layer = ElmoLayer(make_config(code_points=code_points))
    layer.build((None, None, layer.alphabet.row_length))
    saved = tmp_path / "new" / "folder"
    layer.save_to_preset(saved)
    assert sorted(p.name for p in saved.iterdir()) == ["options.json", "weights.hdf5"]
    again = ElmoLayer.from_preset(saved)
    assert again.config == layer.config and again.fingerprint() == layer.fingerprint()
    before = (saved / "weights.hdf5").read_bytes()
    with pytest.raises(ValueError, match="options.json, which exists. Pass overwrite=True"):
        ElmoLayer.from_preset(saved).save_hdf5(saved)
    assert (saved / "weights.hdf5").read_bytes() == before


def test_load_into_a_layer(tiny_preset):
    layer = ElmoLayer(make_config())
    layer.load_hdf5(tiny_preset / "options.json", tiny_preset / "weights.hdf5")
    fingerprint = layer.fingerprint()
    again = ElmoLayer(make_config())
    again.load_preset(tiny_preset)
    assert again.fingerprint() == fingerprint
    message = "a biLM with the options of this layer, .*lstm_dim=11.*Received: .*lstm_dim=10"
    with pytest.raises(ValueError, match=message):
        ElmoLayer(make_config(lstm_dim=11)).load_preset(tiny_preset)


def test_bad_arguments():
    with pytest.raises(ValueError, match="expects a BiLMConfig. Received: config='elmo'"):
        ElmoLayer("elmo")
    for output in ("mean", 3, -4, True, 1.0, None):
        with pytest.raises(ValueError, match="'top', 'average', a number from -3 to 2.* Received:"):
            ElmoLayer(make_config(), output=output)
    with pytest.raises(ValueError, match="trainable_bilm=True, save_bilm=False"):
        ElmoLayer(make_config(), trainable_bilm=True, save_bilm=False)
    for call in (ElmoLayer.fingerprint, lambda layer: layer.save_hdf5("")):
        with pytest.raises(ValueError, match="ElmoLayer has no weights before it is built"):
            call(ElmoLayer(make_config()))


@pytest.mark.parametrize(
    "ids, message",
    [
        (np.zeros((2, 3), "int32"), r"with 4 to 13 characters. Received: shape=\(2, 3\)"),
        (np.zeros((2, 3, 14), "int32"), r"Received: shape=\(2, 3, 14\)"),
        (keras.Input((None, 3), dtype="int32"), r"Received: shape=\(None, None, 3\)"),
        (keras.Input((None, None), dtype="int32"), r"Received: shape=\(None, None, None\)"),
        (np.full((1, 1, 13), 262), "from 0 to 261. Received: ids from 262 to 262"),
        (np.full((1, 1, 13), -1), "from 0 to 261. Received: ids from -1 to -1"),
        (np.full((1, 1, 13), np.nan), "from 0 to 261. Received: ids from nan to nan"),
        (np.eye(13)[None] * 259, "begin with the id 259. Received: 0.0, an id of another alph"),
        (np.pad(tokenize([["a"]], 13), [(0, 1), (1, 0), (0, 0)]), 'begins with padding. .*"post"'),
        (np.full((1, 1, 13), 0.5), "begin with the id 259. Received: 0.5"),
        ([["not", "ids"]], "numbers of 32 or 64 bits. Received: dtype=str96. Pass int32"),
        ([["not"], ["even", "even"]], "in an array. Received: <class 'list'>: .* inhomog"),
    ],
)
def test_bad_ids(ids, message, tiny_layer):
    for layer in (ElmoLayer(make_config()), tiny_layer):
        with pytest.raises(ValueError, match=message):
            layer(ids)
    if isinstance(ids, np.ndarray):
        with pytest.raises(ValueError, match=message):
            tiny_layer(keras.ops.convert_to_tensor(ids))


@only_tensorflow
def test_bad_tensors_of_tensorflow(tiny_layer):
    import tensorflow as tf

    with pytest.raises(ValueError, match=r"Received: a ragged tensor. Pass ids.to_tensor\(\)"):
        tiny_layer(tf.RaggedTensor.from_tensor(tokenize([["a", "b"]], 13)))
    with pytest.raises(ValueError, match="Received: dtype=string.*CharacterTokenizer"):
        tiny_layer(keras.Input((None,), dtype="string"))


@pytest.mark.parametrize("words", [(), ("one", "two")])
def test_ids_of_another_alphabet(words, tiny_layer):
    """More characters than bytes: all ids are in range."""
    code_points = make_code_points(map(chr, range(0x4E00, 0x4E00 + 300)), words)
    layer = ElmoLayer(make_config(code_points=code_points))
    right = CodePointTokenizer(code_points.characters, code_points.words, max_characters=13)
    tokens = [["一", "a"], ["two"]]
    layer(right(tokens))
    wrong = CharacterTokenizer(13)(tokens)
    message = "word ids from 0 to 5" if words else "with the id 4. .*alphabet"
    for ids in (wrong, numpy(wrong)):
        with pytest.raises(
            ValueError, match=rf"{message}.* CharacterTokenizer.from_preset\(preset"
        ):
            layer(ids)
    with pytest.raises(ValueError, match="begin with the id 259"):
        tiny_layer(right(tokens)[:, :, :13])


@pytest.mark.parametrize("dtype", ["bfloat16", "uint8"])
def test_dtypes_that_would_change_ids_are_refused(dtype, tiny_layer):
    message = rf"32 or 64 bits. Received: dtype={dtype}. .*Input\(\(None, 13\)"
    for ids in (keras.Input((None, 13), dtype=dtype), keras.ops.zeros((1, 1, 13), dtype)):
        with pytest.raises(ValueError, match=message):
            tiny_layer(ids)


@pytest.mark.parametrize("output", ["layers", "all", "top"])
def test_a_batch_of_no_sentence(tiny_preset, output):
    layer = ElmoLayer.from_preset(tiny_preset, output=output)
    found = layer(tokenize([], 13))
    shapes = {tuple(x.shape) for x in keras.tree.flatten(found)}
    tokens = shapes.pop()[1]  # The tokenizer gives one column of padding or none.
    assert tokens in (0, 1) and not shapes
    if BACKEND == "tensorflow":
        import tensorflow as tf

        compiled = tf.function(layer, [tf.TensorSpec((None, None, 13), tf.int32)])
        assert {x.shape[0] for x in tf.nest.flatten(compiled(np.zeros((0, 4, 13))))} == {0}


def test_a_hole_counts_as_a_token(tiny_layer):
    """A row of zeros before a token is not padding, because padding is on the right."""
    ids = tokenize([["a", "b", "c"], ["d"]], 13)
    ids[0, 1] = 0
    found = tiny_layer(ids)
    assert numpy(found._keras_mask).tolist() == [[True, True, True], [True, False, False]]
    assert numpy(found)[0, 1].any() and not numpy(found)[1, 1:].any()
