"""Modules import from lower layers only, and no module imports a backend at its top level."""

import ast
import os
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "keras_elmo"

# From the bottom up. A module may import modules of earlier lines.
LINES = [
    {
        "utils.batches",
        "utils.checks",
        "utils.cpu",
        "utils.extras",
        "utils.forks",
        "utils.progress",
        "utils.threads",
        "utils.typing",
    },
    {"utils.quiet", "alphabets", "layer_choice", "layers.backend.tracing"},
    {"config"},
    {"layers.backend.scan", "layers.backend.custom_gradient", "layers.backend.half_precision"},
    {"layers.backend.distinct_rows", "layers.backend.look_up"},
    {"utils.files", "utils.file_lock", "formats.checks", "formats.crc32c"},
    {"formats.hdf5", "formats.weight_mapping", "formats.archives", "formats.vocabulary"},
    {"formats.bilm_weights", "formats.folder"},
    {"released_models"},
    {"formats.base", "formats.tensor_bundle", "formats.torch_weights"},
    {"formats.tensorflow", "formats.allennlp", "formats.many_langs"},
    {"formats.bilm_hdf5"},
    {"presets"},
    {"tokenizers.token_lists", "tokenizers.string_layer", "tokenizers.penn"},
    {"tokenizers.characters", "tokenizers.words"},
    {"text_input"},
    {
        "layers.freezable_layer",
        "layers.boundaries",
        "layers.carried_state",
        "layers.input_checks",
        "layers.scalar_mix",
        "layers.crf",
    },
    {"layers.highway", "layers.lstm"},
    {"layers.char_cnn"},
    {"layers.bilm"},
    {"layers.elmo_layer"},
    {"layers"},
    {"onnx.graph"},
    {"onnx.bilm_graph"},
    {"onnx.models"},
    {"onnx.export"},
    {"embed.token_table", "embed.run_folder"},
    {"embed.layer_file", "embed.parquet"},
    {"embed.layer_dataset", "embed.keras_engine", "embed.onnx_engine"},
    {"embed.input_lines", "embed.engine_choice"},
    {"embed.embedder"},
    {"embed"},
    {"ray", "sklearn", "spacy", "hub"},
    # Pretraining stands on the biLM, never on ElmoLayer.
    {"pretraining.prepare"},
    {"pretraining.recipe", "pretraining.devices"},
    {"pretraining.corpus", "pretraining.checkpoint", "pretraining.optimizers"},
    {"pretraining.softmax", "pretraining.run_folder"},
    {"pretraining.language_model", "pretraining.settings"},
    {"pretraining.scores", "pretraining.language_model_files", "pretraining.growth"},
    {"pretraining.train"},
    {"pretraining.export"},
    {"cli"},
]
LINE_OF = {name: i for i, names in enumerate(LINES) for name in names}
# Checkpoint code sees {path: variable}, never a layer class.
FORBIDDEN = {"tensorflow", "jax", "torch", "onnx", "onnxruntime"}


def find_modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(p for p in parts if p != "__init__")
        if path.name != "__init__.py" or name in ("layers", "embed"):
            yield name, path


MODULES = list(find_modules())


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "use absolute imports"
            yield node.module


@pytest.mark.parametrize("name, path", MODULES, ids=lambda x: x if isinstance(x, str) else "")
def test_imports_point_down(name, path):
    assert name in LINE_OF, f"give {name} a line in this test"
    for other in imported(ast.parse(path.read_text())):
        if other.startswith("keras_elmo."):
            other = other.removeprefix("keras_elmo.")
            assert LINE_OF[other] < LINE_OF[name], f"{name} imports {other}"


@pytest.mark.parametrize("name, path", MODULES, ids=lambda x: x if isinstance(x, str) else "")
def test_no_backend_at_module_top_level(name, path):
    tree = ast.parse(path.read_text())
    top = ast.Module([n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)], [])
    assert not {other.split(".")[0] for other in imported(top)} & FORBIDDEN


def test_tensorflow_stays_out_under_another_backend():
    pytest.importorskip("jax")
    code = (
        "import sys, keras_elmo; keras_elmo.CharacterTokenizer()([['a']]); "
        "sys.exit('tensorflow' in sys.modules)"
    )
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, cwd=PACKAGE.parent)


WITHOUT_TENSORFLOW = """
import sys
sys.modules["tensorflow"] = None  # as if it were not installed
import keras
import numpy as np
import keras_elmo

config = keras_elmo.BiLMConfig(lstm_dim=6, projection_dim=4, filters=((1, 3), (2, 4)))
layer = keras_elmo.ElmoLayer(config)
tokens = [keras_elmo.WordTokenizer("penn")(text) for text in ("A dog barks.", "No.")]
ids = keras_elmo.CharacterTokenizer(config.max_characters_per_token)(tokens)
x = keras.Input(ids.shape[1:], dtype="int32")
h = keras_elmo.ScalarMix()(layer(x))
h = keras.layers.Bidirectional(keras.layers.LSTM(3, return_sequences=True))(h)
crf = keras_elmo.CRF()
model = keras.Model(x, crf(keras.layers.Dense(2)(h)))
model.compile("adam", crf.loss)
ids = keras.ops.convert_to_numpy(ids)
model.fit(ids, np.zeros(ids.shape[:2], "int32"), verbose=0)
arrays = keras_elmo.Embedder(layer).embed(tokens)
for array in (model.predict(ids, verbose=0), keras.ops.convert_to_numpy(layer(ids)), *arrays):
    assert np.isfinite(array).all()
"""


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_tensorflow_need_not_be_installed(backend):
    pytest.importorskip(backend)
    environment = {**os.environ, "KERAS_BACKEND": backend}
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT_TENSORFLOW]
    subprocess.run(command, env=environment, check=True, cwd=PACKAGE.parent)
