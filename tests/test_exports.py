"""Models exported with model.export compute the same numbers as in Keras.

SavedModel, with strings and with ids, is in test_models.py.
"""

import keras
import numpy as np
import pytest
from keras import layers

import keras_elmo
from tests.conftest import SENTENCES, only_tensorflow, tokenize

IDS = tokenize(SENTENCES, 13)

# The converters of tf2onnx and TensorFlow warn.
pytestmark = [
    pytest.mark.extended,
    only_tensorflow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def model(preset, recurrent):
    over_tokens = layers.Bidirectional(layers.LSTM(4)) if recurrent else layers.Lambda(_mean)
    built = keras.Sequential(
        [
            keras.Input((None, 13), dtype="int32"),
            keras_elmo.ElmoLayer.from_preset(preset),
            keras_elmo.ScalarMix(),
            over_tokens,
            layers.Dense(5, activation="softmax"),
        ]
    )
    built(IDS)  # Keras exports what was called
    return built


def tagger(preset):
    ids = keras.Input((None, 13), dtype="int32")
    scores = keras_elmo.ScalarMix()(keras_elmo.ElmoLayer.from_preset(preset)(ids))
    crf = keras_elmo.CRF()
    scores = layers.Dense(4, kernel_initializer=keras.initializers.RandomNormal(3, seed=0))(scores)
    model = keras.Model(ids, crf.decode(scores))
    crf.transitions.assign(np.random.default_rng(0).normal(size=(4, 4)))
    return model


def _mean(x):
    return keras.ops.mean(x, axis=1)


@pytest.mark.parametrize("make", [lambda preset: model(preset, recurrent=True), tagger])
def test_onnx(make, tiny_preset, tmp_path):
    """The export takes any batch size and length, and contains LSTMs of both directions."""
    pytest.importorskip("tf2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    ours = make(tiny_preset)
    assert len(np.unique(ours(IDS))) > 2
    ours.export(tmp_path / "model.onnx", format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    [name] = [value.name for value in session.get_inputs()]
    for ids in (IDS, IDS[:2], IDS[1:2, :3]):
        found = session.run(None, {name: ids})[0]
        np.testing.assert_allclose(found, ours(ids), atol=1e-6)


@pytest.mark.parametrize("make", [lambda preset: model(preset, recurrent=False), tagger])
def test_litert(make, tiny_preset, tmp_path):
    """The export takes one sentence of fixed length and uses operations of LiteRT only."""
    litert = pytest.importorskip("ai_edge_litert.interpreter")
    ours = make(tiny_preset)
    file = str(tmp_path / "model.tflite")
    one = keras.InputSpec(shape=(1, 5, 13), dtype="int32")
    ours.export(file, format="litert", input_signature=[one], verbose=False)
    interpreter = litert.Interpreter(file)  # refuses operations of TensorFlow
    interpreter.allocate_tensors()
    [ids_in], [out] = interpreter.get_input_details(), interpreter.get_output_details()
    for ids in (IDS[:1], IDS[1:2]):
        interpreter.set_tensor(ids_in["index"], ids)
        interpreter.invoke()
        found = interpreter.get_tensor(out["index"])
        np.testing.assert_allclose(found, ours(ids), atol=1e-6)
