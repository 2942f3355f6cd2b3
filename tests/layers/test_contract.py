"""The rules that Keras has for layers, checked for all layers."""

import json

import keras
import numpy as np
import pytest
from keras import ops, tree

from keras_elmo import layers
from tests.conftest import BACKEND, SENTENCES, make_config, numpy, tokenize

pytestmark = pytest.mark.backends("torch")

IDS = tokenize(SENTENCES, 13)
FEATURES = np.random.default_rng(0).normal(size=(4, 5, 7)).astype("float32")
STACKED = np.random.default_rng(1).normal(size=(4, 5, 3, 8)).astype("float32")

LAYERS = {
    "scalar_mix": (layers.ScalarMix, {"layer_norm": True, "dropout": 0.5, "l2": 0.1}, STACKED),
    "crf": (layers.CRF, {}, FEATURES),
    "elmo_layer": (layers.ElmoLayer, {"config": make_config()}, IDS),
    "elmo_all": (
        layers.ElmoLayer,
        {"config": make_config(), "output": "all", "keep_boundaries": True, "trainable_bilm": True},
        IDS,
    ),
    "elmo_weights": (layers.ElmoLayer, {"config": make_config(), "output": [0.2, 0, 0.8]}, IDS),
}


@pytest.fixture(params=LAYERS)
def case(request):
    return LAYERS[request.param]


def flat(x):
    return [numpy(y).astype("float32") for y in tree.flatten(x)]


def test_config_round_trip(case):
    """The config survives JSON."""
    cls, arguments, x = case
    layer = cls(**arguments, name="some_name", dtype="mixed_bfloat16")
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is cls and again.get_config() == layer.get_config()
    assert again.name == "some_name" and again.compute_dtype == "bfloat16"
    layer(x), again.build(x.shape)
    again.set_weights(layer.get_weights())
    for a, b in zip(flat(layer(x)), flat(again(x))):
        np.testing.assert_array_equal(a, b)


def test_symbolic_and_eager_agree_on_shape_and_dtype(case):
    cls, arguments, x = case
    layer = cls(**arguments)
    dtype = "int32" if x.dtype.kind == "i" else "float32"
    symbolic = layer(keras.Input((None, *x.shape[2:]), dtype=dtype))
    eager = layer(x)
    tree.assert_same_structure(symbolic, eager)
    for s, e in zip(tree.flatten(symbolic), tree.flatten(eager)):
        assert len(s.shape) == len(e.shape)
        assert all(a in (None, b) for a, b in zip(s.shape, tuple(e.shape)))
        assert s.dtype == keras.backend.standardize_dtype(e.dtype)


@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16", "mixed_float16"])
def test_dtype_policies(case, policy):
    """Half precision is close to float32, and ids above 256 are not rounded."""
    cls, arguments, x = case
    full, half = cls(**arguments), cls(**arguments, dtype=policy)
    full(x), half(x)
    weights = [
        np.random.default_rng(i).normal(0.1, 0.3, w.shape) for i, w in enumerate(full.weights)
    ]
    seeds = [w.dtype == "uint32" for w in full.weights]
    weights = [w.value if s else y for w, y, s in zip(full.weights, weights, seeds)]
    full.set_weights(weights)
    half.set_weights(weights)
    outputs = tree.flatten(half(x))
    for a, b in zip(flat(full(x)), flat(half(x))):
        assert np.abs(a - b).max() <= 0.05 * np.abs(a).max()
    if cls is layers.ElmoLayer:
        for a, b in zip(flat(half(x)), flat(half(x.astype("float32")))):
            np.testing.assert_array_equal(a, b)
    compute = "float32" if cls is layers.CRF else keras.DTypePolicy(policy).compute_dtype
    assert {keras.backend.standardize_dtype(o.dtype) for o in outputs} == {compute}


@pytest.mark.parametrize(
    "name", ["scalar_mix", pytest.param("elmo_all", marks=pytest.mark.extended)]
)
def test_in_a_compiled_model(name, tmp_path):
    """Checks fit, predict and the .keras file, with XLA if the backend has it."""
    cls, arguments, x = LAYERS[name]
    dtype = "int32" if x.dtype.kind == "i" else "float32"
    inputs = keras.Input((None, *x.shape[2:]), dtype=dtype)
    outputs = cls(**arguments)(inputs)
    parts = [ops.sum(y, axis=1) for y in tree.flatten(outputs)]
    parts = [ops.sum(y, axis=1) if len(y.shape) == 3 else y for y in parts]
    prediction = keras.layers.Dense(2)(keras.layers.Concatenate()(parts) if parts[1:] else parts[0])
    model = keras.Model(inputs, prediction)
    jit = "auto" if BACKEND == "torch" else True
    model.compile("sgd", "mse", jit_compile=jit)
    history = model.fit(x, np.ones((4, 2)), epochs=2, verbose=0)
    assert np.isfinite(history.history["loss"]).all()
    before = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.predict(x, verbose=0), before)
