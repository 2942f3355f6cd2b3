"""Compute matrix products in a lower precision than the dtype of inputs and outputs."""

import keras
from keras import ops

from keras_elmo.utils.typing import Tensor


def mixed_matmul(a: Tensor, b: Tensor, product_dtype: str | None = None) -> Tensor:
    """Multiply two matrices in ``product_dtype``, and cast the product to the dtype of ``a``.

    Args:
        a: Float, shape ``(..., n, k)``.
        b: Float, shape ``(..., k, m)``.
        product_dtype: str or None. Dtype of the product; None for the dtype of ``a``.

    Returns:
        Float, shape ``(..., n, m)``.
    """
    if product_dtype in (None, a.dtype):
        return ops.matmul(a, b)
    product = ops.matmul(ops.cast(a, product_dtype), ops.cast(b, product_dtype))
    return ops.cast(product, a.dtype)


def mixed_dense(
    x: Tensor, kernel: Tensor, bias: Tensor, product_dtype: str | None = None
) -> Tensor:
    """Return ``x kernel + bias``; ``mixed_matmul`` computes the product."""
    product = mixed_matmul(x, kernel, product_dtype)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # The gradient of bias_add takes a quarter of the time of the gradient of a sum.
        return tf.nn.bias_add(product, bias)
    return product + bias
