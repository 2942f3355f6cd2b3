"""Recognise eager calls, and run eager calls on JAX in few shapes."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_elmo.utils.batches import padding_to_few_shapes
from keras_elmo.utils.typing import Tensor


def is_eager(*tensors: Tensor) -> bool:
    """Return whether all tensors have values that can be read now."""
    if any(isinstance(tensor, keras.KerasTensor) for tensor in tensors):
        return False
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.executing_eagerly()
    if backend == "jax":
        import jax

        return not any(isinstance(tensor, jax.core.Tracer) for tensor in tensors)
    import torch

    # Keras finds the shapes of outputs with tensors without values, on the device "meta".
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return not (traced or any(tensor.is_meta for tensor in tensors))


def in_few_shapes(compute: Callable, ids: Tensor, more_tokens: int = 0) -> Any:
    """Call a function of character ids. In eager calls on JAX, pad the ids to one of a few shapes.

    JAX compiles eager calls again for every shape. For the biLM this takes seconds and 100 MB.
    ``more_tokens`` is the number of tokens that the function adds.
    """
    if keras.backend.backend() != "jax" or not is_eager(ids):
        return compute(ids)
    rows, tokens, _ = ids.shape
    more = [(0, n) for n in padding_to_few_shapes(rows, tokens)]
    padded = np.pad(ops.convert_to_numpy(ids), [*more, (0, 0)])

    def cut(x: Tensor) -> Tensor:
        # In NumPy, because JAX would compile each slice.
        cut = ops.convert_to_numpy(x)[:rows, : tokens + more_tokens]
        return ops.convert_to_tensor(cut, x.dtype)

    return keras.tree.map_structure(cut, compute(ops.convert_to_tensor(padded)))
