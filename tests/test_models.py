"""ElmoLayer in Keras models: masks, saving, exporting."""

import copy
import pickle
import zipfile

import keras
import numpy as np
import pytest
from keras import layers

import keras_elmo
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

pytestmark = pytest.mark.backends("torch")

IDS = tokenize(SENTENCES, 13)


def classifier(preset, **kwargs):
    model = keras.Sequential(
        [
            keras.Input((None, 13), dtype="int32"),
            keras_elmo.ElmoLayer.from_preset(preset, name="elmo", **kwargs),
            keras_elmo.ScalarMix(name="mix"),
            layers.Bidirectional(layers.LSTM(4)),
            layers.Dense(5, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def test_saved_model_is_self_contained(tmp_path):
    """The file loads without the preset, and contains no path."""
    config = make_config()
    options, weights = write_preset(tmp_path / "secret_place", config, make_arrays(config))
    model = classifier(tmp_path / "secret_place", trainable_bilm=True)
    model.fit(IDS, np.arange(4), verbose=0)
    expected = model.predict(IDS, verbose=0)
    model.save(tmp_path / "model.keras")
    options.unlink(), weights.unlink()
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict(IDS, verbose=0), expected, atol=1e-6)
    with zipfile.ZipFile(tmp_path / "model.keras") as archive:
        assert b"secret_place" not in archive.read("config.json")


TOKENS = IDS.any(-1)


@pytest.fixture
def other_preset(tmp_path):
    """A directory with a biLM of other weights."""
    write_preset(tmp_path / "other", make_config(), make_arrays(make_config(), seed=1))
    return tmp_path / "other"


def is_missing(model):
    """Return whether a compiled model answers NaN, and check that an eager call raises an error."""
    with pytest.raises(ValueError, match="the weights of its biLM. .*Call load_preset"):
        model(IDS)
    if BACKEND == "torch":  # predict is eager
        return True
    found = model.predict(IDS, verbose=0)
    return np.isnan(found[:3]).all()  # The last sentence has no tokens.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_saving_without_the_bilm(dtype, tiny_preset, other_preset, tmp_path):
    """The loaded model answers NaN until the right biLM is loaded, and right values after that.

    The fingerprint belongs to the weights as the layer stores them, also in bfloat16.
    """
    model = classifier(tiny_preset, save_bilm=False, dtype=dtype)
    expected = model.predict(IDS, verbose=0)
    small, whole = tmp_path / "small.keras", tmp_path / "whole.keras"
    model.save(small)
    classifier(tiny_preset, dtype=dtype).save(whole)
    assert small.stat().st_size < whole.stat().st_size - 2 * model.get_layer("elmo").count_params()

    keras.saving.load_model(small).save(small)  # The file gets the same fingerprint.
    again = keras.saving.load_model(small)
    assert is_missing(again)
    elmo, fingerprint = again.get_layer("elmo"), model.get_layer("elmo").fingerprint()
    wrong = f"that the model was saved with, fingerprint={fingerprint}.*weights.hdf5"
    with pytest.raises(ValueError, match=wrong):
        elmo.load_preset(other_preset)
    for refused in (elmo.fingerprint, lambda: elmo.save_hdf5(tmp_path / "unknown")):
        with pytest.raises(ValueError, match=f"with the biLM of fingerprint {fingerprint}"):
            refused()
    assert is_missing(again)
    elmo.load_preset(tiny_preset)
    np.testing.assert_array_equal(again.predict(IDS, verbose=0), expected)


def test_weights_file_without_the_bilm(tiny_preset, other_preset, tmp_path):
    """load_weights compares the biLM of the layer with the fingerprint in the file."""
    model = classifier(tiny_preset, save_bilm=False)
    head, whole = tmp_path / "head.weights.h5", tmp_path / "whole.weights.h5"
    model.save_weights(head)
    again = classifier(tiny_preset, save_bilm=False)
    again.load_weights(head)
    np.testing.assert_array_equal(numpy(again(IDS)), numpy(model(IDS)))
    again = classifier(tiny_preset, save_bilm=False, load_weights=False)
    assert is_missing(again)
    again.load_weights(head)
    again.get_layer("elmo").load_preset(tiny_preset)
    np.testing.assert_array_equal(numpy(again(IDS)), numpy(model(IDS)))
    full = classifier(tiny_preset)
    full.save_weights(whole)
    for target, file in ((full, head), (again, whole)):
        with pytest.raises(ValueError, match="a file written with the same save_bilm"):
            target.load_weights(file)
    other = classifier(other_preset, save_bilm=False)
    for target in (other, keras.models.clone_model(other)):
        with pytest.raises(ValueError, match="a file that was saved with the biLM of this layer"):
            target.load_weights(head)


def nested(preset):
    """Return a model that contains the classifier as a layer."""
    ids = keras.Input((None, 13), dtype="int32")
    return keras.Model(ids, layers.Dense(2)(classifier(preset)(ids)))


def fingerprints(model):
    elmos = [x for x in model._flatten_layers() if isinstance(x, keras_elmo.ElmoLayer)]
    return [elmo.fingerprint() for elmo in elmos]


@pytest.mark.parametrize("make", [classifier, nested])
def test_a_clone_has_the_bilm(make, tiny_preset):
    model = make(tiny_preset)
    clone = keras.models.clone_model(model)
    assert fingerprints(clone) == fingerprints(model) != []
    twice = keras.models.clone_model(clone)
    del model, clone
    twice.set_weights([np.ones(w.shape) for w in twice.weights])  # Its arrays are no views.
    assert fingerprints(keras.models.clone_model(make(tiny_preset))) != fingerprints(twice)


def test_copies_have_the_bilm(tiny_preset, other_preset):
    """A pickle with save_bilm=False accepts this biLM only."""
    elmo = keras_elmo.ElmoLayer.from_preset(tiny_preset, output="top")
    expected = numpy(elmo(IDS))
    clone = keras_elmo.ElmoLayer.from_config(elmo.get_config())
    for again in (clone, copy.deepcopy(elmo), pickle.loads(pickle.dumps(elmo))):
        np.testing.assert_array_equal(numpy(again(IDS)), expected)
    elmo = keras_elmo.ElmoLayer.from_preset(tiny_preset, output="top", save_bilm=False)
    again = pickle.loads(pickle.dumps(elmo))
    with pytest.raises(ValueError, match=f"fingerprint {elmo.fingerprint()}"):
        again(IDS)
    with pytest.raises(ValueError, match="the biLM that the model was saved with"):
        again.load_preset(other_preset)
    again.load_preset(tiny_preset)
    np.testing.assert_array_equal(numpy(again(IDS)), expected)


def test_a_layer_from_a_config_has_weights_of_nan(tiny_preset, tmp_path):
    """No number of its results is random, compiled or not, until its weights are loaded."""
    model = classifier(tiny_preset)
    expected = model.predict(IDS, verbose=0)
    model.save_weights(tmp_path / "model.weights.h5")
    unloaded = keras.models.model_from_json(model.to_json())
    assert is_missing(keras.models.clone_model(unloaded))
    with pytest.raises(ValueError, match="the weights of its biLM.*Call load_preset or load_hdf5"):
        keras_elmo.Embedder(unloaded.get_layer("elmo"))
    for load in (
        lambda new: new.set_weights(model.get_weights()),
        lambda new: new.load_weights(tmp_path / "model.weights.h5"),
        lambda new: new.get_layer("elmo").load_preset(tiny_preset),
    ):
        new = keras.models.model_from_json(model.to_json())
        assert is_missing(new)
        load(new)
        assert new.get_layer("elmo").fingerprint() == model.get_layer("elmo").fingerprint()
    new.set_weights(model.get_weights())
    np.testing.assert_array_equal(new.predict(IDS, verbose=0), expected)


@pytest.mark.skipif(BACKEND == "torch", reason="predict of PyTorch is eager")
@pytest.mark.parametrize("changes", [{}, {"n_highway": 0, "lstm_dim": 17, "projection_dim": 17}])
def test_every_representation_of_missing_weights_is_nan(changes):
    """No clip or activation makes a number of NaN."""
    ids = keras.Input((None, 13), dtype="int32")
    built = keras_elmo.ElmoLayer(make_config(**changes), output="all")
    missing = keras.models.model_from_json(keras.Model(ids, built(ids)).to_json())
    for found in missing.predict(IDS, verbose=0).values():
        assert np.isnan(found[TOKENS]).all()


CODE_POINTS = ["<bos>", "<eos>", "<bow>", "<eow>", "<pad>", "<oov>", "T", "e"]


@only_tensorflow
@pytest.mark.parametrize("kind", ["words", "characters", "ragged characters", "code points"])
def test_string_layers_can_be_first_without_an_input(kind, eager, tmp_path):
    """tests/tokenizers/test_words.py exports a model of strings."""
    import tensorflow as tf

    texts = tf.constant(["The fox .", "Café"])
    tokens = keras_elmo.WordTokenizer("penn")(texts)
    first = [keras_elmo.CharacterTokenizer(13)]
    config = make_config()
    if kind == "words":
        first.insert(0, keras_elmo.WordTokenizer("penn"))
    if kind == "code points":
        first = [keras_elmo.CodePointTokenizer(CODE_POINTS, max_characters=13)]
        config = make_config(code_points=first[0].code_points)
    inputs = {"words": texts, "ragged characters": tokens}.get(kind, tokens.to_tensor())
    model = keras.Sequential([*first, keras_elmo.ElmoLayer(config, output="top"), layers.LSTM(2)])
    model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((inputs, np.ones((2, 2)))).ragged_batch(2)
    model.fit(data, shuffle=False, verbose=0)
    expected = model.predict(inputs, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict(inputs, verbose=0), expected, atol=1e-6)


def test_padding_and_empty_sentences_in_a_model(tiny_preset):
    """The mask reaches all layers, training continues, and each sentence alone gets its answer."""
    ids = keras.Input((None, 13), dtype="int32")
    elmo = keras_elmo.ElmoLayer.from_preset(tiny_preset)
    whole = keras_elmo.ElmoLayer.from_preset(tiny_preset, keep_boundaries=True)
    mixes = keras_elmo.ScalarMix(l2=1e-3), keras_elmo.ScalarMix()
    pooled = [
        layers.LSTM(4)(mixes[0](elmo(ids))),
        layers.GlobalAveragePooling1D()(mixes[1](whole(ids))),
    ]
    model = keras.Model(ids, layers.Dense(2, activation="softmax")(layers.Concatenate()(pooled)))
    model.compile("adam", "sparse_categorical_crossentropy")
    history = model.fit(IDS, np.arange(4) % 2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    assert all(np.isfinite(w).all() for w in model.get_weights())
    assert all(np.ptp(mix.layer_weights) > 0 for mix in mixes)  # both are trained
    for answer, sentence in zip(model.predict(IDS, verbose=0), SENTENCES, strict=True):
        alone = numpy(model(tokenize([sentence], 13)))[0]
        np.testing.assert_allclose(alone, answer, atol=1e-6)
