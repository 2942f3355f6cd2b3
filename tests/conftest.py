"""Small models that the tests share."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Threads of several workers would wait for each other: the models here are tiny.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# XLA compiles in half the time, and nothing here computes for long.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

import contextlib
import importlib
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

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"
GOLDEN = pathlib.Path(__file__).parent / "golden"
SHARED = pathlib.Path(__file__).parents[2] / "shared"
BACKEND = keras.backend.backend()

# Packages that the extra "test" does not install.
OPTIONAL = {"gensim", "jax", "kiwipiepy", "matplotlib", "sklearn", "torch"}

# A busy machine is no failure.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

only_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow only")


def pytest_collection_modifyitems(config, items):
    """On JAX and PyTorch run only the tests with the mark ``backends``."""
    if BACKEND == "tensorflow":
        return
    others = []
    for item in list(items):
        mark = item.get_closest_marker("backends")
        if mark is None or BACKEND not in (mark.args or ("jax", "torch")):
            items.remove(item)
            others.append(item)
    config.hook.pytest_deselected(items=others)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Skip a test that needs a package which is not installed: one of another extra."""
    try:
        return (yield)
    except ImportError as error:
        missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__
        if isinstance(missing, ModuleNotFoundError) and missing.name.split(".")[0] in OPTIONAL:
            pytest.skip(f"needs {missing.name}")
        raise


def load_arrays(path):
    """Return the arrays of an .npz file by name; close the file."""
    with np.load(path) as file:
        return dict(file)


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
def load(monkeypatch):
    """A function that imports a module of the examples."""
    for name in ("nltk", "seqeval", "matplotlib"):
        pytest.importorskip(name)
    for folder in (EXAMPLES, EXAMPLES / "experiments"):
        monkeypatch.syspath_prepend(folder)
    return importlib.import_module


@pytest.fixture
def preset(tmp_path):
    """A directory with a tiny random biLM that reads as many characters as the released ones."""
    config = make_config(max_characters_per_token=50)
    write_preset(tmp_path / "preset", config, make_arrays(config))
    return tmp_path / "preset"
