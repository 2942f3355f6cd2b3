"""Matrix products in half precision, all else as it was."""

from keras import ops


def matmul(a, b, product_dtype=None):
    """Multiply in ``product_dtype``; in and out is the dtype of ``a``. None for no change."""
    if product_dtype in (None, a.dtype):
        return ops.matmul(a, b)
    product = ops.matmul(ops.cast(a, product_dtype), ops.cast(b, product_dtype))
    return ops.cast(product, a.dtype)
