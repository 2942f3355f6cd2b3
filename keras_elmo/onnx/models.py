"""ONNX models of a biLM: its two halves for the Embedder, and the whole biLM for a file."""

from typing import Any

import numpy as np

from keras_elmo.config import DIRECTIONS, BiLMConfig
from keras_elmo.onnx.bilm_graph import BiLMGraph
from keras_elmo.onnx.graph import Graph, Values

# float32 arrays by the paths of the variables, as in ``BiLMGraph``.
Weights = dict[str, np.ndarray]


def part_model(
    config: BiLMConfig, weights: Weights, part: str, kernel_dtype: str = "float32"
) -> tuple[Any, Weights]:
    """Return a part of a biLM as ``Graph.model_and_weights`` does.

    The character CNN, ``"char_cnn"``, maps ``ids``, int32, shape ``(rows, characters)``, to
    ``token``, float32, shape ``(rows, projection_dim)``.

    The LSTMs of a direction, ``"forward"`` or ``"backward"``, map ``token``, float32, shape
    ``(tokens, batch, projection_dim)``, and ``lengths``, int64, shape ``(batch,)``, to ``{part}_1``
    .. ``{part}_L``, float32, shaped as ``token``, with any values in padding.
    """
    graph = Graph()
    bilm = BiLMGraph(graph, config, weights, kernel_dtype)
    if part == "char_cnn":
        shape: list[int | str] = ["rows", config.projection_dim]
        inputs: Values = {"ids": ("int32", ["rows", "characters"])}
        outputs = {"token": bilm.represent("ids")}
    else:
        shape = ["tokens", "batch", config.projection_dim]
        inputs = {"token": ("float32", shape), "lengths": ("int64", ["batch"])}
        outputs = bilm.contextualize("token", "lengths", [part])
    for name, found in outputs.items():
        graph.op("Identity", found, name=name)
    return graph.model_and_weights(inputs, {name: ("float32", shape) for name in outputs})


def bilm_model(
    config: BiLMConfig,
    weights: Weights,
    kernel_dtype: str = "float32",
    metadata: dict[str, str] | None = None,
) -> Any:
    """Return a biLM as an ``onnx.ModelProto`` that computes what ``ElmoLayer`` computes.

    Args:
        config: BiLMConfig. Sizes of the biLM.
        weights: dict. As in ``BiLMGraph``.
        kernel_dtype: str. As in ``BiLMGraph``.
        metadata: dict of str, or None. Stored in the file.

    Returns:
        A model from ``ids``, int32, shape ``(batch, tokens, characters)``, to ``layers``,
        float32, shape ``(batch, tokens, L + 1, 2 * projection_dim)``, 0 in padding, and
        ``mask``, bool, shape ``(batch, tokens)``.
    """
    graph = Graph()
    bilm = BiLMGraph(graph, config, weights, kernel_dtype)
    op, cast, constant = graph.op, graph.cast, graph.constant
    ids, lengths, inside = bilm.add_boundaries(cast("ids", "int64"))
    token = op("Transpose", bilm.represent_distinct(ids), perm=[1, 0, 2])
    found = bilm.contextualize(token, lengths, DIRECTIONS)

    levels = range(1, config.n_layers + 1)
    pairs = [(found[f"forward_{n}"], found[f"backward_{n}"]) for n in levels]
    axis = constant([2])
    joined = [op("Concat", *pair, axis=-1) for pair in [(token, token), *pairs]]
    layers = op("Concat", *(op("Unsqueeze", layer, axis) for layer in joined), axis=2)
    layers = op("Transpose", layers, perm=[1, 0, 2, 3])
    layers = op("Slice", layers, constant([1]), constant([-1]), constant([1]))
    here = cast(op("Unsqueeze", inside, constant([2, 3])), "float32")
    op("Mul", layers, here, name="layers")
    op("Identity", inside, name="mask")

    inputs: Values = {"ids": ("int32", ["batch", "tokens", "characters"])}
    outputs: Values = {
        "layers": ("float32", ["batch", "tokens", config.n_layers + 1, 2 * config.projection_dim]),
        "mask": ("bool", ["batch", "tokens"]),
    }
    return graph.model(inputs, outputs, metadata)
