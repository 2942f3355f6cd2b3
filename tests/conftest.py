"""Small models that the tests share."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Threads of several workers would wait for each other: the models here are tiny.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if "EVERY_TEST" not in os.environ:
    # XLA compiles in half the time, and nothing here computes for long.
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
    )

import contextlib
import json
import pathlib

import hypothesis
import keras
import numpy as np
import pytest

import keras_elmo
from keras_elmo.formats.bilm_weights import bilm_mapping
from keras_elmo.formats.hdf5 import write_arrays
from keras_elmo.formats.weight_mapping import expected_shapes

GOLDEN = pathlib.Path(__file__).parent / "golden"
SHARED = pathlib.Path(__file__).parents[2] / "shared"
BACKEND = keras.backend.backend()

_COMPILES_LONG = [
    "formats/test_weight_mapping.py",
    "embed/test_embedder.py",
    "embed/test_onnx_engine.py",
    "layers/test_contract.py",
    "layers/test_crf.py",
    "pretraining/test_softmax.py",
    "test_fixtures.py",
    "test_models.py",
]

# TensorFlow runs all but the slowest tests, the others the core: JAX would compile for long.
if BACKEND != "tensorflow" and "EVERY_TEST" not in os.environ:
    collect_ignore = [
        *(_COMPILES_LONG * (BACKEND == "jax")),
        "embed/test_layer_dataset.py",
        "embed/test_layer_file.py",
        "test_analyses.py",
        "test_benchmarks.py",
        "test_bundled.py",
        "test_config.py",
        "test_demo.py",
        "onnx/test_models.py",
        "utils/test_cpu.py",
        "embed/test_parquet.py",
        "test_docstrings.py",
        "test_examples.py",
        "test_experiments.py",
        "test_foreign.py",
        "test_imports.py",
        "test_presets.py",
        "formats/test_formats.py",
        "pretraining/test_corpus.py",
        "embed/test_run_folder.py",
        "utils/test_batches.py",
        "utils/test_checks.py",
        "test_released_models.py",
        "tokenizers/test_penn.py",
        "pretraining/test_prepare.py",
        "pretraining/test_language_model_files.py",
        "pretraining/test_sentences.py",
        "pretraining/test_train.py",
        "utils/test_files.py",
        "formats/test_hdf5.py",
        "formats/test_hostile.py",
        "embed/test_token_table.py",
        "pretraining/test_growth.py",
        "pretraining/test_recipe.py",
        "pretraining/test_settings.py",
        "test_pages.py",
        "test_ray.py",
        "tokenizers/test_words.py",
    ]

# A busy machine is no failure.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

# What takes long and is tested in part elsewhere runs with EVERY_TEST=1.
slow = pytest.mark.skipif("EVERY_TEST" not in os.environ, reason="slow: EVERY_TEST=1 runs it")
not_on_jax = pytest.mark.skipif(
    BACKEND == "jax" and "EVERY_TEST" not in os.environ,
    reason="JAX compiles for long: EVERY_TEST=1 runs it",
)
only_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow only")

SENTENCES = [
    ["The", "quick", "brown", "fox", "jumps"],
    ["Café", "", "나는"],
    ["pneumonoultramicroscopicsilicovolcanoconiosis", "!"],
    [],
]


def make_config(**changes):
    """A biLM in which no two sizes are equal, so that a swapped axis shows."""
    sizes = {
        "filters": ((1, 3), (2, 5), (4, 9)),
        "character_embedding_dim": 4,
        "max_characters_per_token": 13,
        "n_highway": 1,
        "lstm_dim": 10,
        "projection_dim": 6,
    }
    return keras_elmo.BiLMConfig(**(sizes | changes))


def make_arrays(config, seed=0):
    """Random tensors of a weight file for the config."""
    shapes = expected_shapes(bilm_mapping(config))
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, 0.35, s).astype("float32") for name, s in shapes.items()}


def write_preset(directory, config, arrays):
    """Write options and weights, and return their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    options, weights = directory / "options.json", directory / "weights.hdf5"
    options.write_text(json.dumps(config.to_options()))
    write_arrays(weights, arrays)
    return options, weights


def numpy(x):
    return keras.ops.convert_to_numpy(x)


def tokenize(sentences, max_characters=50):
    return numpy(keras_elmo.CharacterTokenizer(max_characters)(sentences))


@contextlib.contextmanager
def room_for(n_bytes):
    """Let no file grow beyond some bytes, as a full disk does."""
    resource = pytest.importorskip("resource")  # Windows has none
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="session")
def tiny_preset(tmp_path_factory):
    """A directory with a tiny random biLM."""
    directory = tmp_path_factory.mktemp("tiny")
    config = make_config()
    write_preset(directory, config, make_arrays(config))
    return directory


@pytest.fixture
def eager():
    """Run each operation by itself on TensorFlow: compiling takes longer than small scripts do."""
    if BACKEND != "tensorflow":
        yield
        return
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture
def preset(tmp_path):
    """A directory with a tiny random biLM that reads as many characters as the released ones."""
    config = make_config(max_characters_per_token=50)
    write_preset(tmp_path / "preset", config, make_arrays(config))
    return tmp_path / "preset"
