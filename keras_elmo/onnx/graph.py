"""Build ONNX graphs, node by node."""

from collections.abc import Collection, Sequence
from typing import Any, Self

import numpy as np

OPSET = 18
_IR_VERSION = 8

# The dtype and the shape of each input or output by name; unknown sizes have names or are None. A
# shape of None is inferred by ONNX.
Values = dict[str, tuple[str, Sequence[int | str | None] | None]]


class Graph:
    """The nodes of an ONNX graph, and the constants of the graph and its subgraphs.

    Args:
        outer: Graph or None. The graph that contains this one. All constants go to the outermost
            graph, so that ONNX Runtime arranges them once, and not at every step of a loop.

    Examples:
        >>> graph = Graph()
        >>> total = graph.op("Add", "x", graph.constant(np.float32(1)), name="y")
        >>> graph.model({"x": ("float32", ["rows"])}, {"y": ("float32", ["rows"])}).graph.name
        'biLM'
    """

    def __init__(self, outer: Self | None = None) -> None:
        self._root: Graph = outer._root if outer else self
        self._nodes: list = []
        self._constants: dict[str, np.ndarray] = {}
        self._count = 0

    def op(self, kind: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """Add a node with one output; return the name of the output."""
        [output] = self.split_op(kind, *inputs, names=[name or self._new_name()], **attributes)
        return output

    def split_op(
        self, kind: str, *inputs: str, outputs: int = 1, names: Any = None, **attributes: Any
    ) -> list[str]:
        """Add a node with several outputs; return their names."""
        from onnx import helper

        names = names or [self._new_name() for _ in range(outputs)]
        self._nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names

    def constant(self, array: Any, name: str | None = None) -> str:
        """Add a constant, unless there is one of this name; return its name."""
        name = name or self._new_name()
        self._root._constants.setdefault(name, np.asarray(array))
        return name

    def cast(self, x: str, dtype: str) -> str:
        """Add a cast; return the name of its output."""
        return self.op("Cast", x, to=_onnx_type(dtype))

    def product(self, x: str, kernel: np.ndarray, name: str, dtype: str = "float32") -> str:
        """Add a matrix product with a constant kernel, ``(inputs, outputs)``, of this name.

        The ``dtype`` says how to store the kernel: float32, or rounded to int8 or uint8 with a
        scale for each output; then ``x`` must be rounded too. On CPUs without VNNI the sums of
        int8 products can overflow; uint8 is exact there. On CPUs with AMX some versions of ONNX
        Runtime compute uint8 wrongly.
        """
        if dtype == "float32":
            return self.op("MatMul", x, self.constant(kernel, name))
        rounded, scale = quantize(kernel)
        zero = 128 if dtype == "uint8" else 0
        shifted = (rounded.astype("int16") + zero).astype(dtype)
        inputs = [self.constant(shifted, f"{name}/{dtype}"), self.constant(scale, f"{name}/scale")]
        if zero:
            inputs.append(self.constant(np.full(len(scale), zero, dtype)))
        return self.op("MatMul", x, self.op("DequantizeLinear", *inputs, axis=1))

    def rounded(self, x: str, bound: float) -> str:
        """Round float32 values with this bound on their absolute values to eight bits.

        ONNX Runtime merges this pattern and ``product`` into one product of eight bits.
        """
        grid = (self.constant(np.float32(bound / 127)), self.constant(np.uint8(128)))
        return self.op("DequantizeLinear", self.op("QuantizeLinear", x, *grid), *grid)

    def rounded_rows(self, x: str) -> tuple[str, str]:
        """Divide each row by its largest absolute value, the scale, and round it to eight bits.

        Returns the names of the rounded rows and of their scales.
        """
        largest = self.op("ReduceMax", self.op("Abs", x), self.constant([-1]), keepdims=1)
        scale = self.op("Max", largest, self.constant(np.float32(1e-9)))
        return self.rounded(self.op("Div", x, scale), 1.0), scale

    def scan(
        self, step: Self, carry: dict[str, str], inputs: dict[str, str], outputs: Sequence[str]
    ) -> str:
        """Add a loop over the first axis of some inputs; return its output.

        Args:
            step: Graph. One step of the loop, made with this graph as ``outer``.
            carry: dict. The carried values: the names in this graph by those in the step.
            inputs: dict. The values whose slices the steps read, by the names of the slices.
                All are float32.
            outputs: list of str. Names in the step: the new carried values, then the output.
        """
        # ONNX Runtime Web does not find the ranks.
        matrix = ("float32", (None, None))
        read: Values = {name: matrix for name in (*carry, *inputs)}
        *_, found = self.split_op(
            "Scan",
            *carry.values(),
            *inputs.values(),
            outputs=len(outputs),
            body=step._as_graph("step", read, {name: matrix for name in outputs}),
            num_scan_inputs=len(inputs),
        )
        return found

    def model(
        self,
        inputs: Values,
        outputs: Values,
        metadata: dict[str, str] | None = None,
        external: Collection[str] = (),
    ) -> Any:
        """Return the graph as an ``onnx.ModelProto``, without the values of external constants."""
        from onnx import helper, numpy_helper

        graph = self._as_graph("biLM", inputs, outputs)
        for name, array in self._constants.items():
            if name not in external:
                graph.initializer.append(numpy_helper.from_array(array, name))
                continue
            tensor = graph.initializer.add(name=name, dims=array.shape, data_location=1)
            tensor.data_type = _onnx_type(array.dtype.name)
            tensor.external_data.add(key="location", value="given to the session")
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=_IR_VERSION,
            producer_name="keras-elmo",
        )
        helper.set_model_props(model, metadata or {})
        return model

    def model_and_weights(self, inputs: Values, outputs: Values) -> tuple[Any, dict]:
        """Return the graph as ``model`` does, without its large constants; and these by name.

        ONNX Runtime can read the constants from these arrays. It would copy constants in the
        model three times.
        """
        large = {
            name: np.ascontiguousarray(array)
            for name, array in self._constants.items()
            if array.nbytes > 1024
        }
        return self.model(inputs, outputs, external=large), large

    def _as_graph(self, name: str, inputs: Values, outputs: Values) -> Any:
        from onnx import helper

        infos, output_infos = (
            [helper.make_tensor_value_info(n, _onnx_type(d), s) for n, (d, s) in values.items()]
            for values in (inputs, outputs)
        )
        return helper.make_graph(self._nodes, name, infos, output_infos)

    def _new_name(self) -> str:
        self._root._count += 1
        return f"_{self._root._count}"


def quantize(kernel: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Round a kernel to int8, symmetric around 0; return it and the scales of its columns."""
    scale = np.abs(kernel).max(axis=0) / np.float32(127)
    scale = np.where(scale > 0, scale, np.float32(1)).astype("float32")
    return np.rint(kernel / scale).astype("int8"), scale


def _onnx_type(dtype: str) -> int:
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
