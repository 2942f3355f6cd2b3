"""Whole ONNX models of a biLM: its halves for the Embedder, and all of it as a file."""

from keras_elmo.layers.bilm import DIRECTIONS, lstm_names
from keras_elmo.onnx.bilm_graph import BiLMGraph
from keras_elmo.onnx.graph import Graph


def token_model(config, weights, int8=False):
    """Return the character CNN as an ``onnx.ModelProto``.

    Args:
        config: The ``BiLMConfig``.
        weights: As for ``BiLMGraph``.
        int8: As for ``BiLMGraph``.

    Returns:
        A model from ``ids``, int32 ``(rows, characters)``, to ``token``, float32 ``(rows,
        projection_dim)``.
    """
    graph = Graph()
    found = BiLMGraph(graph, config, weights, int8).represent("ids")
    graph.op("Identity", found, name="token")
    return graph.model(
        {"ids": ("int32", ["rows", "characters"])},
        {"token": ("float32", ["rows", config.projection_dim])},
    )


def lstm_model(config, weights, int8=False):
    """Return the LSTMs as an ``onnx.ModelProto``; arguments of ``token_model``.

    Returns:
        A model from ``token``, float32 ``(tokens, batch, projection_dim)``, 0 in padding, and
        ``mask``, bool ``(tokens, batch, 1)``, to ``forward_1`` .. ``backward_L``, float32
        ``(tokens, batch, projection_dim)``, which padding gives any values.
    """
    graph = Graph()
    outputs, _ = BiLMGraph(graph, config, weights, int8).contextualize("token", "mask")
    for name, found in outputs.items():
        graph.op("Identity", found, name=name)
    shape = ["tokens", "batch"]
    wide = ("float32", [*shape, config.projection_dim])
    return graph.model(
        {"token": wide, "mask": ("bool", [*shape, 1])}, {name: wide for name in outputs}
    )


def bilm_model(config, weights, int8=False, stateful=False, metadata=None):
    """Return a biLM as an ``onnx.ModelProto``, that does what an ``ElmoLayer`` does.

    Args:
        config: The ``BiLMConfig``.
        weights: As for ``BiLMGraph``.
        int8: As for ``BiLMGraph``.
        stateful: Take the state to start from, and give the final one: ``state_h``, float32
            ``(L, batch, 2 * projection_dim)`` and ``state_c``, ``(L, batch, 2 * lstm_dim)``,
            forward before backward; out as ``next_state_h``, ``next_state_c``.
        metadata: As for ``Graph.model``.

    Returns:
        A model from ``ids``, int32 ``(batch, tokens, characters)``, to ``layers``, float32
        ``(batch, tokens, L + 1, 2 * projection_dim)``, 0 in padding, and ``mask``, bool
        ``(batch, tokens)``.
    """
    graph = Graph()
    bilm = BiLMGraph(graph, config, weights, int8)
    op, cast, constant = graph.op, graph.cast, graph.constant
    ids, with_boundaries, inside = bilm.add_boundaries(cast("ids", "int64"))
    token = bilm.represent_distinct(ids)
    here = cast(op("Unsqueeze", with_boundaries, constant([2])), "float32")
    token = op("Transpose", op("Mul", token, here), perm=[1, 0, 2])
    mask = op("Transpose", cast(here, "bool"), perm=[1, 0, 2])
    starts = _split_state(graph, config) if stateful else {}
    found, ends = bilm.contextualize(token, mask, starts.get if stateful else None)

    layers = [op("Concat", token, token, axis=-1)]
    for layer in range(1, config.n_layers + 1):
        pair = (found[f"{direction}_{layer}"] for direction in DIRECTIONS)
        layers.append(op("Concat", *pair, axis=-1))
    layers = op("Concat", *(op("Unsqueeze", x, constant([2])) for x in layers), axis=2)
    layers = op("Transpose", layers, perm=[1, 0, 2, 3])
    layers = op("Slice", layers, constant([1]), constant([-1]), constant([1]))
    here = cast(op("Unsqueeze", inside, constant([2, 3])), "float32")
    op("Mul", layers, here, name="layers")
    op("Identity", inside, name="mask")

    width, count = 2 * config.projection_dim, config.n_layers
    inputs = {"ids": ("int32", ["batch", "tokens", "characters"])}
    outputs = {
        "layers": ("float32", ["batch", "tokens", count + 1, width]),
        "mask": ("bool", ["batch", "tokens"]),
    }
    if stateful:
        _stack_state(graph, config, ends)
        state = {
            "state_h": ("float32", [count, "batch", width]),
            "state_c": ("float32", [count, "batch", 2 * config.lstm_dim]),
        }
        inputs |= state
        outputs |= {f"next_{name}": kind for name, kind in state.items()}
    return graph.model(inputs, outputs, metadata)


def _split_state(graph, config):
    """Return the names of the (h, c) of every LSTM."""
    parts = []
    for name in ("state_h", "state_c"):
        layers = [name]
        if config.n_layers > 1:
            n = config.n_layers
            layers = graph.op("Split", name, axis=0, num_outputs=n, outputs=n)
        layers = [graph.op("Squeeze", x, graph.constant([0])) for x in layers]
        halves = [graph.op("Split", x, axis=-1, num_outputs=2, outputs=2) for x in layers]
        parts.append([half[d] for d in range(len(DIRECTIONS)) for half in halves])
    return dict(zip(lstm_names(config), zip(*parts), strict=True))


def _stack_state(graph, config, states):
    for i, name in enumerate(("next_state_h", "next_state_c")):
        layers = []
        for layer in range(1, config.n_layers + 1):
            pair = (states[f"{direction}_{layer}"][i] for direction in DIRECTIONS)
            both = graph.op("Concat", *pair, axis=-1)
            layers.append(graph.op("Unsqueeze", both, graph.constant([0])))
        graph.op("Concat", *layers, axis=0, name=name)
