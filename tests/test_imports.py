"""Packages import from lower ones only, and no module imports a backend at its top level."""

import ast
import graphlib
import os
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "keras_elmo"

# From the bottom up. Modules import from their own line, without circles, and from earlier lines.
LINES = [
    "utils",
    "alphabets layer_choice",
    "config",
    "recipe formats released_models",
    "presets",
    "tokenizers",
    "text_input prepare",
    "layers",
    "onnx",
    "embed",
    "pretraining",
    "ray sklearn spacy hub",
    "cli",
]
LINE_OF = {name: number for number, line in enumerate(LINES) for name in line.split()}
FORBIDDEN = {"tensorflow", "jax", "torch", "onnx", "onnxruntime"}
# The only modules that import Keras, by themselves or by what they import.
WITH_KERAS = """
    layers pretraining tokenizers.string_layer tokenizers.characters tokenizers.words utils.forks
    embed.keras_engine embed.layer_dataset
""".split()


def name_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


TREES = {
    name_of(path): ast.parse(path.read_text("utf-8"))
    for path in PACKAGE.rglob("*.py")
    if name_of(path)
}


def imported(nodes):
    """Yield the names of the modules that some nodes of a syntax tree import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "use absolute imports"
            yield node.module


def of_ours(name):
    """Return the modules of the package that a module imports, in functions too."""
    ours = (x for x in imported(ast.walk(TREES[name])) if x.startswith("keras_elmo."))
    return {x.removeprefix("keras_elmo.") for x in ours}


def test_imports_point_down():
    graph = {name: of_ours(name) for name in TREES}
    for name, others in graph.items():
        for other in others:
            lines = [LINE_OF[x.split(".")[0]] for x in (other, name)]
            assert lines[0] <= lines[1], f"{name} imports {other}"
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names a circle


def test_modules_import_no_backend_and_few_import_keras():
    """``engine_choice`` imports the engine of Keras in a function; only the command does so too."""
    for name, tree in TREES.items():
        assert not {other.split(".")[0] for other in imported(tree.body)} & FORBIDDEN, name
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        late = {x for function in functions for x in imported(ast.walk(function))}
        late = {x for x in late if x.startswith("keras_elmo")}
        allowed = {"keras_elmo.embed.keras_engine"} if name == "embed.engine_choice" else set()
        assert late == allowed or name == "cli", f"{name} imports {late} in a function"
    found = {"keras"}
    while new := {f"keras_elmo.{x}" for x in TREES if found & {*imported(TREES[x].body)}} - found:
        found |= new
    prefixes = tuple(f"keras_elmo.{prefix}." for prefix in WITH_KERAS)
    assert not [name for name in found - {"keras"} if not f"{name}.".startswith(prefixes)]


def test_scripts_import_public_names_only():
    for path in (PACKAGE.parent / "examples").rglob("*.py"):
        found = set(imported(ast.walk(ast.parse(path.read_text("utf-8")))))
        ours = {x for x in found if x.startswith("keras_elmo")}
        public = {"keras_elmo", "keras_elmo.pretraining", "keras_elmo.ray"}
        assert ours <= public, f"{path} imports {ours}"


WITHOUT_KERAS = """
import sys
import keras_elmo
from keras_elmo.cli import main

assert {"ElmoLayer", "Embedder"} <= {*dir(keras_elmo)}
embedder = keras_elmo.Embedder("elmo_mini_en")
embedder.embed(embedder.tokenize(["A dog barks."]))
assert main(["embed", "elmo_mini_en", *sys.argv[1:], "--raw", "--quiet"]) == 0
assert not {"keras", "tensorflow", "jax", "torch"} & {*sys.modules}
"""


def test_onnx_runtime_needs_no_keras(tmp_path):
    pytest.importorskip("onnxruntime")
    (tmp_path / "text").write_text("It rains.")
    command = [sys.executable, "-c", WITHOUT_KERAS, tmp_path / "text", tmp_path / "out"]
    subprocess.run(command, check=True, cwd=PACKAGE.parent)


def test_load_model_finds_all_classes_if_keras_is_imported_first():
    code = "import keras, keras_elmo; assert keras.saving.get_registered_object('keras_elmo>CRF')"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE.parent)


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


@pytest.mark.extended
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_tensorflow_need_not_be_installed(backend):
    pytest.importorskip(backend)
    environment = {**os.environ, "KERAS_BACKEND": backend}
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT_TENSORFLOW]
    subprocess.run(command, env=environment, check=True, cwd=PACKAGE.parent)
