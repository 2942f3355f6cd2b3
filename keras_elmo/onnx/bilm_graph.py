"""The parts of a biLM as ONNX: character CNN, LSTMs, boundary tokens."""

import dataclasses

import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.layers.bilm import DIRECTIONS
from keras_elmo.onnx.graph import Graph
from keras_elmo.tokenizers.characters import BEGIN_SENTENCE, END_SENTENCE, boundary_row


def check_alphabet(config):
    """Raise ValueError if a biLM reads anything but bytes."""
    if config.code_points is not None:
        raise ValueError(
            "ONNX expects a biLM that reads bytes. Received: one that reads code points "
            '(ELMoForManyLangs). Use engine="keras"'
        )


@dataclasses.dataclass(frozen=True)
class BiLMGraph:
    """Add the parts of a biLM to an ONNX graph.

    Attributes:
        graph: The ``Graph``.
        config: The ``BiLMConfig``.
        weights: Dict of float32 arrays by the paths of the variables of a ``BiLM``, such as
            ``char_cnn/embeddings`` and ``forward_1/kernel``.
        int8: Whether the matrix products round both sides to eight bits.
    """

    graph: Graph
    config: BiLMConfig
    weights: dict
    int8: bool = False

    def __post_init__(self):
        check_alphabet(self.config)

    def represent(self, ids) -> str:
        """Add the character CNN.

        Args:
            ids: Name of character ids, int, shape ``(rows, characters)``.

        Returns:
            Name of the token representations, float32, shape ``(rows, projection_dim)``.
        """
        graph, config = self.graph, self.config
        x = graph.op("Gather", self._constant("char_cnn/embeddings"), ids)
        x = graph.op("Transpose", x, perm=[0, 2, 1])
        features = []
        for i, _ in enumerate(config.filters):
            kernel, bias = (f"char_cnn/conv_{i}_{part}" for part in ("kernel", "bias"))
            kernel = graph.constant(np.transpose(self.weights[kernel], (2, 1, 0)), kernel)
            windows = graph.op("Conv", x, kernel, self._constant(bias))
            features.append(graph.op("ReduceMax", windows, graph.constant([2]), keepdims=0))
        x = graph.op("Concat", *features, axis=-1) if len(features) > 1 else features[0]
        # It grows with its input, so it can follow the maximum.
        x = graph.op({"relu": "Relu", "tanh": "Tanh"}[config.activation], x)
        for i in range(config.n_highway):
            prefix = f"char_cnn/highway_{i}"
            left = self._left(x)
            transform = graph.op("Relu", self._affine(left, f"{prefix}/transform"))
            gate = graph.op("Sigmoid", self._affine(left, f"{prefix}/gate"))
            change = graph.op("Mul", gate, graph.op("Sub", transform, x))
            x = graph.op("Add", x, change)
        if config.has_projection:
            # It stays as it is: a tenth of the highways, and three times their error.
            x = dataclasses.replace(self, int8=False)._affine((x, None), "char_cnn/projection")
        return x

    def contextualize(self, x, mask, state=None) -> tuple:
        """Add the LSTMs.

        Args:
            x: Name of the token representations, float32, time first: shape ``(tokens,
                batch, projection_dim)``, 0 in padding.
            mask: Name of a bool, shape ``(tokens, batch, 1)``, padding on the right.
            state: Function from the name of an LSTM to the names of the ``(h, c)`` that it
                starts from, which padding then leaves as they are; None for zeros.

        Returns:
            Two dicts with the keys ``forward_1`` to ``backward_L``: the names of the outputs,
            float32, shape of ``x``, which padding gives any values; and of the final
            ``(h, c)``.
        """
        outputs, states = {}, {}
        for direction in DIRECTIONS:
            y = x
            for layer in range(1, self.config.n_layers + 1):
                name = f"{direction}_{layer}"
                *states[name], found = self._lstm(name, y, mask, state and state(name))
                skips = self.config.use_skip_connections and layer > 1
                y = outputs[name] = self.graph.op("Add", y, found) if skips else found
        return outputs, states

    def _lstm(self, name, x, mask, state):
        """Add an LSTM; returns the names of its final h and c, and of its outputs."""
        graph, config = self.graph, self.config
        size = config.lstm_dim
        reverse = name.startswith("backward")
        # A product for each gate: a split of all four would copy them.
        gates = [slice(i * size, (i + 1) * size) for i in range(4)]
        bias = self.weights[f"{name}/bias"] + np.repeat(np.float32([0, 1, 0, 0]), size)
        bias = [graph.constant(bias[g], f"{name}/bias_{i}") for i, g in enumerate(gates)]
        outer = graph.op("Shape", x, end=2)
        rows, scale = self._left(
            graph.op("Reshape", x, graph.constant([-1, config.projection_dim]))
        )
        inputs = {"scale": scale} if scale else {}
        for i, columns in enumerate(gates):
            z = self._product(rows, f"{name}/kernel", columns)
            inputs[f"z{i}"] = z if scale else graph.op("Add", z, bias[i])
        for part, rows in inputs.items():
            width = graph.constant([1 if part == "scale" else size])
            shape = graph.op("Concat", outer, width, axis=0)
            inputs[part] = graph.op("Reshape", rows, shape)

        step = dataclasses.replace(self, graph=Graph(outer=graph))
        op = step.graph.op
        left, z = step._left("h"), []
        for i, columns in enumerate(gates):
            z.append(step._scaled_product(left, f"{name}/recurrent_kernel", columns))
            if scale:  # here, where they are at hand, and not for all steps at once
                z[i] = op("Add", op("Mul", f"z{i}", "scale"), op("Add", z[i], bias[i]))
            else:
                z[i] = op("Add", z[i], f"z{i}")
        i, f, o = (op("Sigmoid", z[k]) for k in (0, 1, 3))
        c = op("Add", op("Mul", f, "c"), op("Mul", i, op("Tanh", z[2])))
        c = step._clip(c, config.cell_clip)
        if reverse and not state:  # it reads padding first: a cell of 0 has an output of 0
            inputs["is_token"] = graph.cast(mask, "float32")
            c = op("Mul", c, "is_token")
        h = op("Mul", o, op("Tanh", c))
        if config.projection_dim != size:
            bound = 1.0 if config.cell_clip is None else np.tanh(config.cell_clip)
            h = step._scaled_product(step._left(h, bound), f"{name}/projection")
            h = step._clip(h, config.projection_clip)
        if state:
            inputs["is_token"] = mask
            h, c = (op("Where", "is_token", new, old) for new, old in ((h, "h"), (c, "c")))
        for value, result in ((h, "next_h"), (c, "next_c"), (h, "output")):
            op("Identity", value, name=result)

        narrow, wide = ("float32", ["batch", config.projection_dim]), ("float32", ["batch", size])
        one = ("bool" if state else "float32", ["batch", 1])
        body_inputs = {"h": narrow, "c": wide}
        kinds = {"is_token": one, "scale": ("float32", ["batch", 1])}
        body_inputs |= {n: kinds.get(n, wide) for n in inputs}
        body_outputs = {"next_h": narrow, "next_c": wide, "output": narrow}
        carry = state or [self._zeros(x, n) for n in (config.projection_dim, size)]
        body = (step.graph, body_inputs, body_outputs)
        return graph.scan(body, carry, list(inputs.values()), 1, reverse)

    def add_boundaries(self, ids) -> tuple:
        """Add the mask and the boundary tokens, as ``layers/boundaries.py`` does.

        Args:
            ids: Name of character ids, int64, shape ``(batch, tokens, characters)``.

        Returns:
            Names: of the ids with both boundary tokens, ``(batch, tokens + 2, characters)``,
            and of two masks, bool, with and without them, ``(batch, tokens + 2)``, ``(batch,
            tokens)``.
        """
        op, cast, constant = self.graph.op, self.graph.cast, self.graph.constant
        zero, one = constant(np.int64(0)), constant(np.int64(1))
        real = op("ReduceMax", op("Sign", ids), constant([-1]), keepdims=0)
        count = op("CumSum", real, constant(np.int64(1)), reverse=1)
        inside = op("Greater", count, zero)
        inside_number = cast(inside, "int64")

        def pad(x, before, after, value):
            return op("Pad", x, constant([0, before, 0, after]), value)

        tokens = pad(inside_number, 1, 1, zero)
        from_begin = pad(pad(inside_number, 1, 0, one), 0, 1, zero)
        whole = pad(inside_number, 2, 0, one)
        # Every place holds its token, or one of the boundary rows, or nothing.
        axis, shape = constant([2]), op("Shape", ids, start=2)
        padded = op("Pad", ids, constant([0, 1, 0, 0, 1, 0]), zero)
        for marker, more, less in (
            (BEGIN_SENTENCE, from_begin, tokens),
            (END_SENTENCE, whole, from_begin),
        ):
            row = constant(boundary_row(marker, self.config.max_characters_per_token))
            row = cast(op("Slice", row, constant([0]), shape), "int64")
            here = op("Unsqueeze", op("Sub", more, less), axis)
            padded = op("Where", cast(here, "bool"), row, padded)
        return padded, cast(whole, "bool"), inside

    def represent_distinct(self, ids) -> str:
        """Add the character CNN over the distinct tokens of sentences.

        Args:
            ids: Name of character ids, int64, shape ``(batch, tokens, characters)``.

        Returns:
            Name of the token representations, float32, ``(batch, tokens, projection_dim)``.
        """
        op, constant = self.graph.op, self.graph.constant
        outer = op("Shape", ids, end=2)
        rows = op("Reshape", ids, op("Concat", constant([-1]), op("Shape", ids, start=2), axis=0))
        distinct, _, places = op("Unique", rows, outputs=3, axis=0, sorted=0)
        found = op("Gather", self.represent(distinct), places)
        shape = op("Concat", outer, constant([self.config.projection_dim]), axis=0)
        return op("Reshape", found, shape)

    def _affine(self, left, prefix):
        product = self._scaled_product(left, f"{prefix}_kernel")
        return self.graph.op("Add", product, self._constant(f"{prefix}_bias"))

    def _left(self, x, bound=None):
        """Return the left side of products, and the scale of its rows, or None."""
        return self.graph.rounded(x, bound) if self.int8 else (x, None)

    def _scaled_product(self, left, name, columns=None):
        product, scale = self._product(left[0], name, columns), left[1]
        return self.graph.op("Mul", product, scale) if scale else product

    def _product(self, x, name, columns=None):
        kernel = self.weights[name]
        if columns:
            kernel, name = kernel[:, columns], f"{name}_{columns.start // self.config.lstm_dim}"
        return self.graph.product(x, kernel, name, self.int8)

    def _clip(self, x, bound):
        if bound is None:
            return x
        low, high = (self.graph.constant(np.float32(b)) for b in (-bound, bound))
        # Behind a Clip that one node reads, ONNX Runtime leaves an int8 product in float32.
        return self.graph.op("Min", self.graph.op("Max", x, low), high)

    def _zeros(self, x, size):
        batch = self.graph.op("Shape", x, start=1, end=2)
        shape = self.graph.op("Concat", batch, self.graph.constant([size]), axis=0)
        return self.graph.op("ConstantOfShape", shape)

    def _constant(self, name):
        return self.graph.constant(self.weights[name], name)
