"""Find the distinct rows of a matrix, where this saves time."""

import keras

from keras_elmo.layers.backend.tracing import is_exporting
from keras_elmo.utils.typing import Tensor


def distinct_rows(rows: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the distinct rows, and for every row its index among them.

    Return all rows and None where the search is impossible or slow: JAX and XLA compile for fixed
    sizes, GPUs are slow at it, and the exports to ONNX and LiteRT do not support it.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        # UniqueV2 has no kernel for GPUs, and sorts under XLA.
        if not (_in_xla() or is_exporting() or tf.config.list_logical_devices("GPU")):
            return tf.raw_ops.UniqueV2(x=rows, axis=[0])
    if backend == "torch" and rows.device.type == "cpu":
        import torch

        return torch.unique(rows, dim=0, return_inverse=True)
    return rows, None


def _in_xla() -> bool:
    """Return whether TensorFlow builds a graph for XLA. There is no public way to find out."""
    import tensorflow as tf
    from tensorflow.python.ops import control_flow_util

    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
