"""Compute matrix products in a lower precision than the dtype of inputs and outputs."""

import keras
from keras import ops

from keras_elmo.utils.typing import Tensor


def mixed_matmul(a: Tensor, b: Tensor, product_dtype: str | None = None) -> Tensor:
    """Multiply matrices in ``product_dtype``, and cast the product to the dtype of ``a``.

    None means the dtype of ``b``. The shapes are as in ``keras.ops.matmul``.
    """
    dtype = product_dtype or b.dtype
    product = ops.matmul(ops.cast(a, dtype), ops.cast(b, dtype))
    return ops.cast(product, a.dtype)


def mixed_dense(
    x: Tensor, kernel: Tensor, bias: Tensor, product_dtype: str | None = None
) -> Tensor:
    """Return ``x kernel + bias``; ``mixed_matmul`` computes the product."""
    if keras.backend.backend() != "tensorflow":
        return mixed_matmul(x, kernel, product_dtype) + bias
    import tensorflow as tf

    # The gradient of bias_add takes a quarter of the time of the gradient of a sum. TensorFlow
    # merges it with the product of matrices, not of tensors with three axes.
    rows = ops.reshape(x, (-1, x.shape[-1]))
    found = tf.nn.bias_add(mixed_matmul(rows, kernel, product_dtype), bias)
    return ops.reshape(found, (*ops.shape(x)[:-1], kernel.shape[-1]))
