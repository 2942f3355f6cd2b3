"""Matrix products in half precision, all else in float32."""

from keras import ops


def matmul(a, b, product_dtype="float32"):
    """Multiply in ``product_dtype``; float32 in and out."""
    if product_dtype == "float32":
        return ops.matmul(a, b)
    return ops.cast(ops.matmul(ops.cast(a, product_dtype), ops.cast(b, product_dtype)), "float32")
