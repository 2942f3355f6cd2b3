"""Compare the ONNX models, run by ONNX Runtime, with the goldens and the specification."""

import collections
import json
import sys

import numpy as np
import pytest

import keras_elmo
from keras_elmo.alphabets import SPECIAL_CHARACTERS, CodePoints
from keras_elmo.cli import main
from keras_elmo.formats.bilm_weights import bilm_mapping
from keras_elmo.formats.weight_mapping import load
from keras_elmo.onnx.export import export_onnx
from keras_elmo.onnx.graph import quantize
from keras_elmo.onnx.models import bilm_model
from keras_elmo.utils.cpu import cpu_flags, overflows_in_int8
from tests import reference
from tests.conftest import (
    GOLDEN,
    SENTENCES,
    load_arrays,
    make_arrays,
    make_config,
    numpy,
    tokenize,
    write_preset,
)

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

OVERFLOWS = overflows_in_int8(cpu_flags())


def session(model):
    if not isinstance(model, bytes):
        onnx.checker.check_model(model, full_check=True)
        model = model.SerializeToString()
    return onnxruntime.InferenceSession(model)


def exported(preset, folder, **kwargs):
    export_onnx(preset, folder / "bilm.onnx", overwrite=True, **kwargs)
    return session((folder / "bilm.onnx").read_bytes())


@pytest.mark.parametrize("folder", [GOLDEN / "a_standard", GOLDEN / "f_clip"], ids=str)
def test_layers_of_the_goldens(folder, tmp_path):
    facts = json.loads((folder / "golden.json").read_text())
    arrays = load_arrays(folder / "golden.npz")
    exact, rounded = (exported(folder, tmp_path, int8=int8) for int8 in (False, True))
    for name in ("mixed", "single", "uniform", "special", "empty_sentence"):
        ids = tokenize(facts["batches"][name])
        expected = np.moveaxis(arrays[f"{name}.activations"], 0, 2)[:, 1:-1]
        inside = (ids > 0).any(-1)
        for run, bound in ((exact, 1e-5), (rounded, 0.1))[: 1 if OVERFLOWS else 2]:
            layers, mask = run.run(["layers", "mask"], {"ids": ids})
            np.testing.assert_array_equal(mask, inside)
            assert not layers[~mask].any()
            assert np.abs(layers - expected)[mask].max() < bound
        errors = ((layers - expected)[mask] ** 2).mean((0, 2)) / (expected[mask] ** 2).mean((0, 2))
        assert OVERFLOWS or ((0 < errors).all() and (errors < 0.03**2).all())


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_all_products_are_of_eight_bits(dtype, tmp_path):
    """ONNX Runtime merges the nodes of a product only if it recognises the whole pattern."""
    config = make_config()
    weights = load(bilm_mapping(config), make_arrays(config))
    model = bilm_model(config, weights, dtype).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(model, options)
    graph = onnx.load(tmp_path / "optimized.onnx").graph
    [*steps] = [a.g for node in graph.node for a in node.attribute if a.name == "body"]
    kinds = collections.Counter(node.op_type for step in steps for node in step.node)
    assert len(steps) == 4  # both directions of two layers
    assert kinds["MatMulIntegerToFloat"] == 4 * (1 + 2)  # gates, and the projection in two parts
    assert not {"MatMul", "Gemm"} & set(kinds)
    assert kinds["DequantizeLinear"] == 4  # what the rounding of the outputs of the cells left


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_eight_bits_without_optimisation(dtype):
    """The products are then computed in float32 of rounded values: they overflow on no CPU."""
    config = make_config()
    weights = load(bilm_mapping(config), make_arrays(config))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    exact, rounded = (
        onnxruntime.InferenceSession(
            bilm_model(config, weights, kind).SerializeToString(), options
        ).run(["layers"], {"ids": tokenize(SENTENCES, 13)})[0]
        for kind in ("float32", dtype)
    )
    assert 0 < ((rounded - exact) ** 2).mean() < 0.01**2 * (exact**2).mean()


def test_a_hole_counts_as_a_token(tiny_preset, tmp_path):
    ids = tokenize([["a", "b", "c"], ["d"]], 13)
    ids[0, 1] = 0
    layers, mask = exported(tiny_preset, tmp_path).run(["layers", "mask"], {"ids": ids})
    assert mask.tolist() == [[True, True, True], [True, False, False]]
    expected = numpy(keras_elmo.ElmoLayer.from_preset(tiny_preset)(ids))
    np.testing.assert_allclose(layers, expected, atol=1e-5)


def test_other_dtypes_become_float32(tmp_path):
    config = make_config()
    arrays = {name: array.astype("float16") for name, array in make_arrays(config).items()}
    write_preset(tmp_path, config, arrays)
    ids = tokenize(SENTENCES, 13)
    layers = exported(tmp_path, tmp_path).run(["layers"], {"ids": ids})[0]
    expected = numpy(keras_elmo.ElmoLayer.from_preset(tmp_path)(ids))
    np.testing.assert_allclose(layers, expected, atol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_highway": 0},
        {"n_highway": 2, "activation": "tanh"},
        {"n_layers": 1},
        {"n_layers": 3, "use_skip_connections": False},
        {"cell_clip": None, "projection_clip": None},
        {"cell_clip": 0.1, "projection_clip": 0.05},
        {"projection_dim": 17},
        {"lstm_dim": 6},
    ],
    ids=str,
)
def test_every_shape_of_a_bilm(changes):
    config = make_config(**{"lstm_dim": 19, **changes})
    arrays = make_arrays(config)
    model = bilm_model(config, load(bilm_mapping(config), dict(arrays)))
    layers = session(model).run(["layers"], {"ids": tokenize(SENTENCES, 13)})[0]
    for found, sentence in zip(layers, SENTENCES, strict=True):
        expected = reference.elmo_layers(sentence, config.to_options(), arrays)
        np.testing.assert_allclose(found[: len(sentence)], expected, atol=1e-5)


@pytest.mark.parametrize("int8", [False, True])
def test_no_sentence_depends_on_its_neighbours(tiny_preset, tmp_path, int8):
    """The scales of int8 and the width of the character axis do not matter either."""
    run = exported(tiny_preset, tmp_path, int8=int8)
    together = run.run(["layers"], {"ids": tokenize(SENTENCES, 13)})[0]
    for row, sentence in zip(together, SENTENCES[:3]):
        ids = tokenize([sentence], 13)
        alone = run.run(["layers"], {"ids": ids})[0][0]
        np.testing.assert_allclose(row[: len(sentence)], alone, atol=1e-6)
    narrow = run.run(["layers"], {"ids": tokenize([["fox", "a"]], 13)[..., :9]})[0]
    wide = run.run(["layers"], {"ids": tokenize([["fox", "a"]], 13)})[0]
    np.testing.assert_allclose(narrow, wide, atol=1e-6)


@pytest.mark.skipif(OVERFLOWS, reason="int8 files need a CPU with VNNI")
def test_int8_on_the_bundled_bilm(tmp_path):
    """Rounding changes every layer by less than 2%."""
    text = "The river Thames flows through London , and its banks were once marshes ."
    ids = tokenize([text.split(), text.lower().split()[3:], "It 's 1,234.5 km away".split()])
    exact, rounded = (
        exported("elmo_mini_en", tmp_path, int8=int8).run(None, {"ids": ids})
        for int8 in (False, True)
    )
    mask = exact[1]
    error, size = (rounded[0] - exact[0])[mask], exact[0][mask]
    shares = np.sqrt((error**2).mean((0, 2)) / (size**2).mean((0, 2)))
    assert (shares < 0.02).all() and shares[1] > 0.001
    assert shares[0] < 0.01  # the projection of the character CNN stays in float32
    whole = keras_elmo.ElmoLayer.from_preset("elmo_mini_en")(ids)
    np.testing.assert_allclose(exact[0], numpy(whole), atol=5e-5)


def test_no_sentence_and_no_token():
    config = make_config()
    run = session(bilm_model(config, load(bilm_mapping(config), make_arrays(config))))
    for shape in ((0, 5, 13), (0, 0, 13), (2, 0, 13)):
        layers, mask = run.run(["layers", "mask"], {"ids": np.zeros(shape, "int32")})
        assert mask.shape == shape[:2]
        assert layers.shape == (*shape[:2], config.n_layers + 1, 2 * config.projection_dim)


def test_quantize():
    kernel = np.float32([[1, 0, -127], [-0.5, 0, 254]])
    rounded, scale = quantize(kernel)
    np.testing.assert_array_equal(rounded, [[127, 0, -64], [-64, 0, 127]])
    assert rounded.dtype == "int8" and scale.dtype == "float32"
    np.testing.assert_allclose(rounded * scale, kernel, atol=1)


def test_command_line(tiny_preset, tmp_path, capsys):
    file = tmp_path / "bilm.onnx"
    assert main(["export-onnx", str(tiny_preset), str(file), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["bytes"] == file.stat().st_size
    assert facts["inputs"]["ids"] == ["batch", "tokens", "characters"]
    assert facts["outputs"]["layers"] == ["batch", "tokens", 3, 12]
    fingerprint = keras_elmo.ElmoLayer.from_preset(tiny_preset).fingerprint()
    assert facts["fingerprint"] == fingerprint
    metadata = session(file.read_bytes()).get_modelmeta().custom_metadata_map
    assert metadata == {"fingerprint": fingerprint, "max_characters": "13"}
    options = ["--options", str(tiny_preset / "options.json")]
    command = ["export-onnx", str(tiny_preset), str(file), *options]
    assert main(command) == 1 and "which exists. Pass overwrite" in capsys.readouterr().err
    assert main([*command, "--force"]) == 0
    command[2] = str(tiny_preset / "weights.hdf5")
    assert main([*command, "--force"]) == 1 and "is also an input" in capsys.readouterr().err


def test_code_points_are_refused():
    config = make_config(code_points=CodePoints(characters=(*SPECIAL_CHARACTERS, "a")))
    with pytest.raises(ValueError, match="ONNX expects a biLM that reads bytes. Received: a biLM"):
        bilm_model(config, {})
    layer = keras_elmo.ElmoLayer(config)
    layer.build((None, None, 13))
    with pytest.raises(ValueError, match='code points .* Use engine="keras"'):
        keras_elmo.Embedder(layer, engine="onnxruntime")


def test_without_onnx(tiny_preset, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"needs ONNX. Received: no module onnx. .*\.\[onnx"):
        export_onnx(tiny_preset, tmp_path / "x.onnx")
