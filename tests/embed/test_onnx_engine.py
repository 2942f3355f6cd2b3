"""Compare Embedder on ONNX Runtime with Embedder on Keras."""

import importlib.util
import pickle
import sys

import numpy as np
import pytest

from keras_elmo import ElmoLayer, Embedder
from keras_elmo.embed import engine_choice, onnx_engine
from keras_elmo.embed.onnx_engine import OnnxEngine
from tests.conftest import make_config
from tests.embed.conftest import MANY, assert_close
from tests.embed.test_threads import run_all

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def onnx(tiny_preset):
    return Embedder(tiny_preset, engine="onnxruntime")


@pytest.fixture(scope="module")
def int8(tiny_preset):
    return Embedder(tiny_preset, engine="onnxruntime", dtype="int8")


@pytest.mark.parametrize("layers", ["all", "top", "average", 0, 1, 2])
def test_the_same_as_on_keras(embedder, onnx, layers):
    for array, other in zip(onnx.embed(MANY, layers), embedder.embed(MANY, layers), strict=True):
        assert array.dtype == "float32" and array.shape == other.shape
        assert array.flags.owndata and array.flags.c_contiguous
        np.testing.assert_allclose(array, other, atol=1e-5)


def test_int8_is_near_and_no_sentence_depends_on_another(tiny_preset, embedder, int8):
    found, exact = int8.embed(MANY), embedder.embed(MANY)
    error, size = (
        np.concatenate(arrays, axis=1).astype("float64")
        for arrays in ([a - b for a, b in zip(found, exact, strict=True)], exact)
    )
    shares = np.sqrt((error**2).mean((1, 2)) / (size**2).mean((1, 2)))
    assert (0.0003 < shares).all() and (shares < 0.03).all()
    settings = {"engine": "onnxruntime", "dtype": "int8", "cache": 1, "batch_tokens": 40}
    other = Embedder(tiny_preset, **settings)
    assert_close(other.embed(MANY), found, atol=1e-6)
    assert_close([other.embed([sentence])[0] for sentence in MANY], found, atol=1e-6)


def test_upper_layers_are_left_out(onnx, monkeypatch):
    """A run for layer 1 does not compute layer 2."""
    import onnxruntime

    asked = []
    run = onnxruntime.InferenceSession.run

    def note(session, names, inputs, options=None):
        asked.append((names, options and options.only_execute_path_to_fetches))
        return run(session, names, inputs, options)

    monkeypatch.setattr(onnxruntime.InferenceSession, "run", note)
    onnx.embed([["fox"]], 1)
    onnx.embed([["fox"]], 0)
    assert sorted(asked[-2:]) == [(["backward_1"], True), (["forward_1"], True)]


def test_sessions_are_made_once_and_directions_share_the_cores(tiny_preset, monkeypatch):
    used, start = [], onnx_engine._start
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")  # a number for each level of nesting
    monkeypatch.setattr(onnx_engine, "_start", lambda *args: used.append(args[2]) or start(*args))
    ours = Embedder(tiny_preset, engine="onnxruntime")
    run_all(lambda _: ours.embed([["a", "b"]], "top"), range(8))
    ours.embed(MANY)
    assert sorted(used) == [2, 2, 3]  # the directions, and the character CNN


@pytest.mark.parametrize("flags, kind", [(["avx2"], "uint8"), (["avx512_vnni"], "int8")])
def test_int8_where_its_sums_can_overflow(tiny_preset, monkeypatch, flags, kind):
    monkeypatch.setattr(onnx_engine, "cpu_flags", lambda: flags)
    made, build = [], onnx_engine.part_model
    monkeypatch.setattr(
        onnx_engine, "part_model", lambda *args: made.append(args[3]) or build(*args)
    )
    Embedder(tiny_preset, engine="onnxruntime", dtype="int8").embed(MANY)
    assert made == [kind] * 3


@pytest.mark.parametrize("settings", [{}, {"engine": "onnxruntime", "dtype": "int8"}], ids=str)
def test_pickle(tiny_preset, settings):
    layer = ElmoLayer.from_preset(tiny_preset)
    layer.bilm.lstms[0].bias.assign(layer.bilm.lstms[0].bias + 1)
    ours = Embedder(layer, batch_tokens=40, **settings)
    again = pickle.loads(pickle.dumps(ours))
    assert again.batch_tokens == 40
    assert_close(again.embed(MANY), ours.embed(MANY))


@pytest.mark.parametrize(
    "dtype, chosen", [("float32", "onnxruntime"), ("bfloat16", "keras"), ("int8", "onnxruntime")]
)
def test_auto(tiny_preset, monkeypatch, dtype, chosen):
    monkeypatch.setattr("keras_elmo.embed.embedder.choose_engine", engine_choice.choose_engine)
    engine, reason = engine_choice.choose_engine(make_config(), dtype)
    assert (engine, bool(reason)) == (chosen, True)
    ours = Embedder(tiny_preset, dtype=dtype)
    assert isinstance(ours._engine, OnnxEngine) == (chosen == "onnxruntime")
    half = ElmoLayer(make_config(), dtype="bfloat16")
    half.build((None, None, 13))
    assert not isinstance(Embedder(half)._engine, OnnxEngine)
    if dtype == "float32":
        with monkeypatch.context() as patch:  # as if /dev/null were an accelerator
            patch.setattr(engine_choice, "_DEVICES", ["null"])
            patch.setattr("keras_elmo.embed.keras_engine.computes_on_cpu", lambda: False)
            assert engine_choice.choose_engine(make_config())[0] == "keras"
        with monkeypatch.context() as patch:
            patch.setattr(importlib.util, "find_spec", lambda name: None)
            assert "onnx and onnxruntime missing" in str(engine_choice.choose_engine(make_config()))


def test_without_onnx_runtime(tiny_preset, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"no module onnxruntime. .*\.\[onnx\]"):
        Embedder(tiny_preset, engine="onnxruntime")
