"""ONNX graphs, node by node."""

import numpy as np

OPSET = 18
_IR_VERSION = 8


class Graph:
    """Collect the nodes of an ONNX graph, and the constants of it and its subgraphs.

    Args:
        outer: The graph that this one is a part of, or None. It holds the constants, which
            ONNX Runtime then arranges for its products once, and not at every step of a loop.

    Example:

    >>> graph = Graph()
    >>> total = graph.op("Add", "x", graph.constant(np.float32(1)), name="y")
    >>> graph.model({"x": ("float32", ["rows"])}, {"y": ("float32", ["rows"])}).graph.name
    'biLM'
    """

    def __init__(self, outer=None):
        self._root = outer._root if outer else self
        self._nodes = []
        if not outer:
            self._constants = {}
            self._count = 0

    def op(self, kind, *inputs, outputs=1, name=None, **attributes):
        """Add a node; returns the name of its output, or the list of their names."""
        from onnx import helper

        names = [name] if name else [self._new_name() for _ in range(outputs)]
        self._nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, array, name=None) -> str:
        """Add a constant, once for each name; returns its name."""
        name = name or self._new_name()
        self._root._constants.setdefault(name, array)
        return name

    def cast(self, x, dtype) -> str:
        """Add a change of dtype; returns the name of its output."""
        return self.op("Cast", x, to=_onnx_type(dtype))

    def product(self, x, kernel, name, int8=False) -> str:
        """Add a matrix product with constants; returns its name.

        Args:
            x: Name of the left side, float32; for ``int8`` that of ``rounded``.
            kernel: The right side, float32, shape ``(inputs, outputs)``.
            name: Name for it.
            int8: Round it to eight bits, on a scale for each of its outputs.
        """
        if int8:
            rounded, scale = quantize(kernel)
            inputs = (self.constant(rounded, f"{name}/int8"), self.constant(scale, f"{name}/scale"))
            return self.op("MatMul", x, self.op("DequantizeLinear", *inputs, axis=1))
        return self.op("MatMul", x, self.constant(kernel, name))

    def rounded(self, x, bound=None) -> tuple:
        """Round rows to eight bits, none of which depends on another.

        Args:
            x: Name of the rows, float32.
            bound: What no absolute value exceeds: the scale of all rows. None for a scale of
                each row's own, of its largest value.

        Returns:
            Names: of the rows, divided by their own scales and rounded, and of these scales,
            one a row, or None. ONNX Runtime makes one product of eight bits of this and
            ``product``.
        """
        zero = self.constant(np.uint8(128))
        if bound is not None:
            grid = (self.constant(np.float32(bound / 127)), zero)
            return self.op("DequantizeLinear", self.op("QuantizeLinear", x, *grid), *grid), None
        largest = self.op("ReduceMax", self.op("Abs", x), self.constant([-1]), keepdims=1)
        scale = self.op("Max", largest, self.constant(np.float32(1e-9)))
        grid = (self.constant(np.float32(1 / 127)), zero)
        x = self.op("QuantizeLinear", self.op("Div", x, scale), *grid)
        return self.op("DequantizeLinear", x, *grid), scale

    def scan(self, body, carry, inputs, n_outputs, reverse=False) -> list:
        """Add a loop over the first axis of the inputs.

        Args:
            body: ``Graph`` of one step, made with this one as ``outer``, and its inputs and
                outputs as for ``model``: carried values, then slices or new outputs.
            carry: Names of what is carried at the start.
            inputs: Names of what is sliced.
            n_outputs: Number of stacked outputs.
            reverse: Go from the last slice to the first; the outputs stay in the order of the
                inputs.

        Returns:
            Names: the last carried values, then the stacked outputs.
        """
        graph, body_inputs, body_outputs = body
        backward = {"scan_input_directions": [1] * len(inputs)} if reverse else {}
        if reverse:
            backward["scan_output_directions"] = [1] * n_outputs
        return self.op(
            "Scan",
            *carry,
            *inputs,
            outputs=len(carry) + n_outputs,
            body=graph._as_graph("step", body_inputs, body_outputs),
            num_scan_inputs=len(inputs),
            **backward,
        )

    def model(self, inputs, outputs, metadata=None):
        """Return the whole as an ``onnx.ModelProto``.

        Args:
            inputs: Dict of name to pair of dtype and shape, whose unknown sizes have names.
            outputs: The same.
            metadata: Dict of strings that the file keeps, or None.
        """
        from onnx import helper

        model = helper.make_model(
            self._as_graph("biLM", inputs, outputs),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=_IR_VERSION,
            producer_name="keras-elmo",
        )
        helper.set_model_props(model, metadata or {})
        return model

    def _as_graph(self, name, inputs, outputs):
        from onnx import helper, numpy_helper

        constants = self._constants if self is self._root else {}
        inputs, outputs = (
            [helper.make_tensor_value_info(n, _onnx_type(d), s) for n, (d, s) in values.items()]
            for values in (inputs, outputs)
        )
        arrays = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
        return helper.make_graph(self._nodes, name, inputs, outputs, arrays)

    def _new_name(self):
        self._root._count += 1
        return f"_{self._root._count}"


def quantize(kernel) -> tuple:
    """Round a kernel to eight bits, symmetric around 0, with a scale for each column.

    Args:
        kernel: float32, shape ``(inputs, outputs)``.

    Returns:
        int8 of the same shape, and the scales, float32, shape ``(outputs,)``.
    """
    scale = np.abs(kernel).max(axis=0) / np.float32(127)
    scale = np.where(scale > 0, scale, np.float32(1)).astype("float32")
    return np.rint(kernel / scale).astype("int8"), scale


def _onnx_type(dtype):
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
