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
    ``(tokens, batch, projection_dim)``, 0 in padding, and ``mask``, bool, shape ``(tokens, batch,
    1)``, to ``{part}_1`` .. ``{part}_L``, float32, shaped as ``token``, with any values in padding.
    """
    graph = Graph()
    bilm = BiLMGraph(graph, config, weights, kernel_dtype)
    if part == "char_cnn":
        shape: list[int | str] = ["rows", config.projection_dim]
        inputs: Values = {"ids": ("int32", ["rows", "characters"])}
        outputs = {"token": bilm.represent("ids")}
    else:
        shape = ["tokens", "batch", config.projection_dim]
        inputs = {"token": ("float32", shape), "mask": ("bool", [*shape[:2], 1])}
        outputs, _ = bilm.contextualize("token", "mask", directions=[part])
    for name, found in outputs.items():
        graph.op("Identity", found, name=name)
    return graph.model_and_weights(inputs, {name: ("float32", shape) for name in outputs})


def bilm_model(
    config: BiLMConfig,
    weights: Weights,
    kernel_dtype: str = "float32",
    stateful: bool = False,
    metadata: dict[str, str] | None = None,
) -> Any:
    """Return a biLM as an ``onnx.ModelProto`` that computes what ``ElmoLayer`` computes.

    Args:
        config: BiLMConfig. Sizes of the biLM.
        weights: dict. As in ``BiLMGraph``.
        kernel_dtype: str. As in ``BiLMGraph``.
        stateful: bool. Whether the initial state is an input and the final state an output:
            ``state_h``, float32, shape ``(L, batch, 2 * projection_dim)``, and ``state_c``,
            ``(L, batch, 2 * lstm_dim)``, forward before backward; ``next_state_h`` and
            ``next_state_c``.
        metadata: dict of str, or None. Stored in the file.

    Returns:
        A model from ``ids``, int32, shape ``(batch, tokens, characters)``, to ``layers``,
        float32, shape ``(batch, tokens, L + 1, 2 * projection_dim)``, 0 in padding, and
        ``mask``, bool, shape ``(batch, tokens)``.
    """
    graph = Graph()
    bilm = BiLMGraph(graph, config, weights, kernel_dtype)
    op, cast, constant = graph.op, graph.cast, graph.constant
    ids, with_boundaries, inside = bilm.add_boundaries(cast("ids", "int64"))
    token = bilm.represent_distinct(ids)
    here = cast(op("Unsqueeze", with_boundaries, constant([2])), "float32")
    token = op("Transpose", op("Mul", token, here), perm=[1, 0, 2])
    mask = op("Transpose", cast(here, "bool"), perm=[1, 0, 2])
    starts = _split_state(graph, config) if stateful else None
    found, ends = bilm.contextualize(token, mask, starts)

    levels = range(1, config.n_layers + 1)
    pairs = [(found[f"forward_{n}"], found[f"backward_{n}"]) for n in levels]
    layers = _stack(graph, [(token, token), *pairs], axis=2)
    layers = op("Transpose", layers, perm=[1, 0, 2, 3])
    layers = op("Slice", layers, constant([1]), constant([-1]), constant([1]))
    here = cast(op("Unsqueeze", inside, constant([2, 3])), "float32")
    op("Mul", layers, here, name="layers")
    op("Identity", inside, name="mask")

    width, count = 2 * config.projection_dim, config.n_layers
    inputs: Values = {"ids": ("int32", ["batch", "tokens", "characters"])}
    outputs: Values = {
        "layers": ("float32", ["batch", "tokens", count + 1, width]),
        "mask": ("bool", ["batch", "tokens"]),
    }
    if stateful:
        for i, (name, size) in enumerate((("state_h", width), ("state_c", 2 * config.lstm_dim))):
            pairs = [(ends[f"forward_{n}"][i], ends[f"backward_{n}"][i]) for n in levels]
            _stack(graph, pairs, axis=0, name=f"next_{name}")
            inputs[name] = outputs[f"next_{name}"] = ("float32", [count, "batch", size])
    return graph.model(inputs, outputs, metadata)


def _stack(graph: Graph, pairs: list[tuple[str, str]], axis: int, name: str | None = None) -> str:
    """Join the two directions of each layer, and stack the layers along a new axis."""
    layers = [graph.op("Concat", *pair, axis=-1) for pair in pairs]
    axes = graph.constant([axis])
    layers = [graph.op("Unsqueeze", layer, axes) for layer in layers]
    return graph.op("Concat", *layers, axis=axis, name=name)


def _split_state(graph: Graph, config: BiLMConfig) -> dict[str, list[str]]:
    """Return the initial (h, c) of every LSTM, by its name."""
    starts: dict[str, list[str]] = {name: [] for name in config.lstm_names}
    for name in ("state_h", "state_c"):
        halves = graph.split_op("Split", name, outputs=2, axis=-1, num_outputs=2)
        for direction, half in zip(DIRECTIONS, halves, strict=True):
            for n in range(config.n_layers):
                layer = graph.op("Gather", half, graph.constant(n), axis=0)
                starts[f"{direction}_{n + 1}"].append(layer)
    return starts
