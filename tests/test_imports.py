"""Imports point down only, and no backend comes in uncalled for."""

import ast
import os
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "keras_elmo"

# From the bottom up; a module may import modules below its own line, or the same line
# where it says so in SAME_LINE.
LINES = [
    {"config", "text", "cpu", "checkpoints.hdf5"},
    {"characters", "words"},
    {"alphabets", "layers.converters"},
    {"layers.scan", "layers.custom_gradient", "layers.products"},
    {"checkpoints.rows", "checkpoints.files", "checkpoints.file_lock"},
    {"checkpoints.bilm_table", "checkpoints.archives"},
    {"checkpoints.bilm_files", "checkpoints.sources.crc32c", "checkpoints.sources.files"},
    {
        "checkpoints.sources.base",
        "checkpoints.sources.tensor_bundle",
        "checkpoints.sources.torch_file",
        "checkpoints.sources.torch_table",
    },
    {
        "checkpoints.sources.tensorflow",
        "checkpoints.sources.allennlp",
        "checkpoints.sources.many_langs",
    },
    {"checkpoints.sources.bilm_hdf5"},
    {"checkpoints.presets"},
    {"checkpoints.convert"},
    {
        "tokenizer",
        "layers.freezable_layer",
        "layers.boundaries",
        "layers.carried_state",
        "layers.pretrained_layer",
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
    {"embedding.word_table", "embedding.weight_values"},
    {"embedding.layer_file", "embedding.parquet"},
    {"embedding.layer_dataset", "embedding.keras_engine", "embedding.onnx_engine"},
    {"embedding.embedder"},
    {"embedding"},
    {"ray"},
    # Pretraining stands on the biLM, never on ElmoLayer.
    {"pretraining.data.text", "pretraining.data.vocabulary"},
    {"pretraining.data.sentences"},
    {"pretraining.prepare"},
    {"pretraining.run.recipe", "pretraining.run.hosts", "pretraining.results.card"},
    {"pretraining.run.devices"},
    {"pretraining.data.corpus", "pretraining.run.checkpoint", "pretraining.run.optimizers"},
    {"pretraining.model.softmax", "pretraining.run.folder"},
    {"pretraining.model.language_model", "pretraining.run.settings"},
    {"pretraining.scores", "pretraining.preset", "pretraining.model.growth"},
    {"pretraining.train"},
    {"pretraining.results.export"},
    {"cli"},
]
LINE_OF = {name: i for i, names in enumerate(LINES) for name in names}
# Checkpoint code sees {path: variable}, never a layer class.
FORBIDDEN = {"tensorflow", "jax", "torch", "onnx", "onnxruntime"}


def find_modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(p for p in parts if p != "__init__")
        if path.name != "__init__.py" or name in ("layers", "embedding"):
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


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_tensorflow_stays_out_under_another_backend(backend):
    pytest.importorskip(backend)
    code = (
        "import sys, keras_elmo; keras_elmo.CharacterTokenizer()([['a']]); "
        "sys.exit('tensorflow' in sys.modules)"
    )
    environment = {**os.environ, "KERAS_BACKEND": backend}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, cwd=PACKAGE.parent)


def test_layers_are_registered_when_keras_comes_in():
    """Even behind a look at whether Keras is there."""
    code = (
        "import importlib.util, sys, keras_elmo; finder = sys.meta_path[0]; "
        "assert importlib.util.find_spec('keras') and 'keras' not in sys.modules; "
        "import keras; assert keras.saving.get_registered_object('keras_elmo>ElmoLayer'); "
        "assert type(finder).__module__ == 'keras_elmo' and finder not in sys.meta_path"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PACKAGE.parent)
