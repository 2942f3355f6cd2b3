"""Time matrix products of given sizes in every installed library."""

import functools
import importlib.util
import os
import pathlib
import platform
import re
import time

import numpy as np


def cpu_name():
    """Return the name of the CPU, on Linux from its maker."""
    path = pathlib.Path("/proc/cpuinfo")
    found = path.exists() and re.search(r"model name\s*: (.*)", path.read_text())
    return found[1] if found else platform.processor() or platform.machine()


def seconds(call, repeats=1):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _numpy(rows, weights):
    return lambda: [x @ w for x, w in zip(rows, weights)]


def _torch(rows, weights):
    import torch

    torch.set_num_threads(os.cpu_count())
    rows, weights = ([torch.from_numpy(a) for a in arrays] for arrays in (rows, weights))
    return lambda: [torch.mm(x, w) for x, w in zip(rows, weights)]


def _tensorflow(rows, weights):
    import tensorflow as tf

    rows, weights = ([tf.Variable(a) for a in arrays] for arrays in (rows, weights))
    # The maximum uses every product, and keeps large results from being copied out.
    return tf.function(lambda: [tf.reduce_max(x @ w) for x, w in zip(rows, weights)])


def _onnxruntime(rows, weights):
    import onnxruntime

    from keras_elmo.onnx.graph import Graph

    graph, inputs, outputs = Graph(), {}, {}
    for i, (x, w) in enumerate(zip(rows, weights)):
        inputs[f"x{i}"], outputs[f"y{i}"] = ("float32", x.shape), ("float32", [len(x), w.shape[1]])
        graph.op("MatMul", f"x{i}", graph.constant(w, f"w{i}"), name=f"y{i}")
    model = graph.model(inputs, outputs).SerializeToString()
    session = onnxruntime.InferenceSession(model)
    arrays = {f"x{i}": x for i, x in enumerate(rows)}
    return lambda: session.run(None, arrays)


LIBRARIES = {
    "numpy": _numpy,
    "torch": _torch,
    "tensorflow": _tensorflow,
    "onnxruntime": _onnxruntime,
}


@functools.cache
def product_seconds(*shapes) -> dict:
    """Return a dict from library to the seconds for some products, one after the other.

    Args:
        *shapes: tuples of ints. ``(rows, inputs, outputs)`` of each product.
    """
    rng = np.random.default_rng(0)
    rows = [rng.normal(size=(n, k)).astype("float32") for n, k, _ in shapes]
    weights = [rng.normal(size=(k, m)).astype("float32") for _, k, m in shapes]
    found = {}
    for name, make in LIBRARIES.items():
        if importlib.util.find_spec(name):
            call = make(rows, weights)
            call()
            found[name] = seconds(call, 5)
    return found


def lstm_seconds(config, batches) -> dict:
    """Return a dict from library to the seconds for the products of all LSTMs.

    Args:
        config: ``BiLMConfig``. Sizes of the biLM.
        batches: list of pairs of ints. Sentences and tokens of each batch; the tokens include
            the boundary tokens.
    """
    total = dict.fromkeys(map(str, LIBRARIES), 0.0)
    width, size = config.projection_dim, config.lstm_dim
    for sentences, tokens in batches:
        # The time grows linearly with the tokens, so eight are enough to measure.
        some = min(tokens, 8) if sentences > 1 else tokens
        inputs = product_seconds((some * sentences, width, 4 * size))
        steps = product_seconds((sentences, width, 4 * size), (sentences, size, width))
        for name in steps:
            each = inputs[name] * tokens / some + tokens * steps[name]
            total[name] += 2 * config.n_layers * each
    return {name: took for name, took in total.items() if took}


def word_seconds(config, words, characters) -> dict:
    """Return a dict from library to the seconds for the character CNN, in batches of 256 words."""
    shapes = [
        (256 * (characters - width + 1), width * config.character_embedding_dim, count)
        for width, count in config.filters
    ]
    shapes += [(256, config.n_filters, config.n_filters)] * (2 * config.n_highway)
    shapes.append((256, config.n_filters, config.projection_dim))
    return {name: took * words / 256 for name, took in product_seconds(*shapes).items()}
