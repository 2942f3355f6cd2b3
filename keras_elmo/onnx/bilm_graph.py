"""The parts of a biLM as ONNX: character CNN, LSTMs, boundary tokens."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.onnx.graph import Graph


def check_alphabet(config: BiLMConfig) -> None:
    """Raise ValueError if a biLM does not read bytes."""
    if config.code_points is not None:
        raise ValueError(
            "ONNX expects a biLM that reads bytes. Received: a biLM that reads code points "
            '(ELMoForManyLangs). Use engine="keras"'
        )


@dataclasses.dataclass(frozen=True)
class BiLMGraph:
    """Add the parts of a biLM to an ONNX graph. Methods take and return names of values.

    Attributes:
        graph: Graph.
        config: BiLMConfig.
        weights: dict. float32 arrays by the paths of the variables of a ``BiLM``, such as
            ``char_cnn/embeddings`` and ``forward_1/kernel``.
        kernel_dtype: str. ``"float32"``; with ``"int8"`` or ``"uint8"`` the matrix products
            round both sides to eight bits.
    """

    graph: Graph
    config: BiLMConfig
    weights: dict[str, np.ndarray]
    kernel_dtype: str = "float32"

    def __post_init__(self) -> None:
        check_alphabet(self.config)

    def represent(self, ids: str) -> str:
        """Add the character CNN, from character ids, int, shape ``(rows, characters)``.

        Returns token representations, float32, shape ``(rows, projection_dim)``.
        """
        graph, config = self.graph, self.config
        x = graph.op("Gather", self._constant("char_cnn/embeddings"), ids)
        x = graph.op("Transpose", x, perm=[0, 2, 1])
        features = []
        for i in range(len(config.filters)):
            name = f"char_cnn/conv_{i}_kernel"
            kernel = graph.constant(np.transpose(self.weights[name], (2, 1, 0)), name)
            windows = graph.op("Conv", x, kernel, self._constant(f"char_cnn/conv_{i}_bias"))
            features.append(graph.op("ReduceMax", windows, graph.constant([2]), keepdims=0))
        x = graph.op("Concat", *features, axis=-1)
        # The activation increases with its input, so it can follow the maximum.
        x = graph.op({"relu": "Relu", "tanh": "Tanh"}[config.activation], x)
        for i in range(config.n_highway):
            left = self._left(x)
            transform = graph.op("Relu", self._affine(left, f"char_cnn/highway_{i}/transform"))
            gate = graph.op("Sigmoid", self._affine(left, f"char_cnn/highway_{i}/gate"))
            x = graph.op("Add", x, graph.op("Mul", gate, graph.op("Sub", transform, x)))
        if config.has_projection:
            # Not in eight bits: it costs a tenth of the highways, and would have three times
            # their error.
            exact = dataclasses.replace(self, kernel_dtype="float32")
            x = exact._affine((x, None), "char_cnn/projection")
        return x

    def contextualize(self, x: str, lengths: str, directions: Sequence[str]) -> dict[str, str]:
        """Add the LSTMs of some directions, from token representations.

        ``x`` is float32, shape ``(tokens, batch, projection_dim)``, with any finite values in
        padding, which is on the right. ``lengths`` is int64, shape ``(batch,)``, the number of
        tokens of each sentence.

        Returns the outputs by the names of the LSTMs, ``forward_1`` to ``backward_L``: float32,
        shaped as ``x``, with any values in padding.
        """
        outputs = {}
        for direction in directions:
            y = self._in_order(direction, x, lengths)
            for layer in range(1, self.config.n_layers + 1):
                name = f"{direction}_{layer}"
                found = self._lstm(name, y)
                has_residual = self.config.use_skip_connections and layer > 1
                y = self.graph.op("Add", y, found) if has_residual else found
                outputs[name] = self._in_order(direction, y, lengths)
        return outputs

    def _in_order(self, direction: str, x: str, lengths: str) -> str:
        """Reverse the tokens of each sentence for the backward direction; padding stays."""
        if direction == "forward":
            return x
        return self.graph.op("ReverseSequence", x, lengths, time_axis=0, batch_axis=1)

    def _lstm(self, name: str, x: str) -> str:
        """Add an LSTM that starts from zeros; return its outputs."""
        graph, config = self.graph, self.config
        bias = self.weights[f"{name}/bias"] + np.repeat(
            np.array([0, 1, 0, 0], "float32"), config.lstm_dim
        )
        step = dataclasses.replace(self, graph=Graph(outer=graph))
        op = step.graph.op
        rows, scale = self._left(x)
        inputs = {"scale": scale} if scale else {}
        inputs["z"], z = self._product(rows, f"{name}/kernel"), "z"
        if scale:  # Scale here, in the cache, and not for all steps at once.
            z = op("Mul", z, "scale")
        recurrent = step._scaled_product(step._left("h"), f"{name}/recurrent_kernel")
        recurrent = op("Add", recurrent, graph.constant(bias, f"{name}/bias"))
        gates = step.graph.split_op(
            "Split", op("Add", z, recurrent), outputs=4, axis=-1, num_outputs=4
        )
        input_gate, forget_gate, output_gate = (op("Sigmoid", gates[k]) for k in (0, 1, 3))
        new = op("Mul", input_gate, op("Tanh", gates[2]))
        c = op("Add", op("Mul", forget_gate, "c"), new)
        c = step._clip(c, config.cell_clip)
        h = op("Mul", output_gate, op("Tanh", c))
        if config.projection_dim != config.lstm_dim:
            bound = 1.0 if config.cell_clip is None else np.tanh(config.cell_clip)
            h = step._clip(step._project(h, bound, f"{name}/projection"), config.projection_clip)
        carry = {"h": self._zeros(x, config.projection_dim), "c": self._zeros(x, config.lstm_dim)}
        return graph.scan(step.graph, carry, inputs, [h, c, op("Identity", h)])

    def add_boundaries(self, ids: str) -> tuple[str, str, str]:
        """Add the mask and the boundary tokens, as ``layers/boundaries.py`` does.

        From int64 ids, ``(batch, tokens, characters)``. Returns the ids with both boundary tokens,
        ``(batch, tokens + 2, characters)``; the number of tokens with both, int64, ``(batch,)``;
        the mask of the given tokens, bool.
        """
        op, constant = self.graph.op, self.graph.constant
        zero, one = constant(np.int64(0)), constant(np.int64(1))
        is_filled = op("ReduceMax", op("Sign", ids), constant([-1]), keepdims=0)
        inside = op("Greater", op("CumSum", is_filled, one, reverse=1), zero)
        n_tokens = op("ReduceSum", self.graph.cast(inside, "int64"), constant([1]), keepdims=1)
        end = op("Add", n_tokens, one)
        padded = op("Pad", ids, constant([0, 1, 0, 0, 1, 0]), zero)
        length = op("Gather", op("Shape", padded), one)
        places = op("Range", zero, length, one)
        rows = self.config.alphabet.boundary_rows(self.config.max_characters_per_token)
        row_length = op("Shape", ids, start=2)
        for row, place in zip(rows.astype("int64"), (zero, end), strict=True):
            row = op("Slice", constant(row), constant([0]), row_length)
            here = op("Unsqueeze", op("Equal", places, place), constant([-1]))
            padded = op("Where", here, row, padded)
        return padded, op("Squeeze", op("Add", end, one), constant([1])), inside

    def represent_distinct(self, ids: str) -> str:
        """Add the character CNN over the distinct tokens of sentences.

        From int64 ids, ``(batch, tokens, characters)``, to ``(batch, tokens, projection_dim)``.
        """
        op, constant = self.graph.op, self.graph.constant
        outer, row = op("Shape", ids, end=2), op("Shape", ids, start=2)
        rows = op("Reshape", ids, op("Concat", constant([-1]), row, axis=0))
        # A row of padding in front, because Unique fails on an array without rows.
        rows = op("Pad", rows, constant([1, 0, 0, 0]), constant(np.int64(0)))
        distinct, _, places = self.graph.split_op("Unique", rows, outputs=3, axis=0, sorted=0)
        places = op("Slice", places, constant([1]), op("Shape", places))
        found = op("Gather", self.represent(distinct), places)
        shape = op("Concat", outer, constant([self.config.projection_dim]), axis=0)
        return op("Reshape", found, shape, allowzero=1)

    def _affine(self, left: tuple[str, str | None], prefix: str) -> str:
        product = self._scaled_product(left, f"{prefix}_kernel")
        return self.graph.op("Add", product, self._constant(f"{prefix}_bias"))

    def _project(self, x: str, bound: float, name: str) -> str:
        """Add a product whose left side has a bound on its absolute values.

        Most outputs of LSTM cells are far below their bound. Their rounding to eight bits would
        be half of the error of a layer, so the product also takes what the rounding left.
        """
        if self.kernel_dtype == "float32":
            return self._product(x, name)
        rounded = self.graph.rounded(x, bound)
        rest = self.graph.rounded(self.graph.op("Sub", x, rounded), bound / 254)
        # With Add, ONNX Runtime would make one of the products a Gemm in float32.
        return self.graph.op("Sum", self._product(rounded, name), self._product(rest, name))

    def _left(self, x: str) -> tuple[str, str | None]:
        """Return the left side of products, and the scale of its rows or None."""
        return (x, None) if self.kernel_dtype == "float32" else self.graph.rounded_rows(x)

    def _scaled_product(self, left: tuple[str, str | None], name: str) -> str:
        product, scale = self._product(left[0], name), left[1]
        return self.graph.op("Mul", product, scale) if scale else product

    def _product(self, x: str, name: str) -> str:
        return self.graph.product(x, self.weights[name], name, self.kernel_dtype)

    def _clip(self, x: str, bound: float | None) -> str:
        if bound is None:
            return x
        low, high = (self.graph.constant(np.float32(b)) for b in (-bound, bound))
        return self.graph.op("Clip", x, low, high)

    def _zeros(self, x: str, size: int) -> str:
        batch = self.graph.op("Shape", x, start=1, end=2)
        shape = self.graph.op("Concat", batch, self.graph.constant([size]), axis=0)
        return self.graph.op("ConstantOfShape", shape)

    def _constant(self, name: str) -> str:
        return self.graph.constant(self.weights[name], name)
