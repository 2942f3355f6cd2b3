"""Find the distinct tokens of a batch, so that each is computed once."""

import math

import keras
from keras import ops

from keras_elmo.utils.typing import Tensor


def distinct_rows(ids: Tensor, n_ids: int) -> tuple[Tensor, Tensor | None]:
    """Find the distinct tokens in a batch of character ids, where this saves time.

    Args:
        ids: int, shape ``(batch, tokens, characters)``.
        n_ids: int. Number of different ids, 0 included.

    Returns:
        The distinct rows, shape ``(n, characters)``, and for every token its index among them,
        shape ``(batch * tokens,)``. All rows and None where the search does not pay: on JAX, which
        compiles for fixed sizes; on GPUs; and on TensorFlow for one sentence, as in LiteRT files.
    """
    rows = ops.reshape(ids, (-1, ops.shape(ids)[-1]))
    if not _is_search_fast(ids):
        return rows, None
    # Add a row of padding in front: convolutions cannot read a batch without rows.
    rows = ops.pad(rows, [[1, 0], [0, 0]])
    if keras.backend.backend() == "tensorflow":
        distinct, indices = _tensorflow_distinct_rows(rows, n_ids)
    else:
        import torch

        distinct, indices = torch.unique(rows, dim=0, return_inverse=True)
    return distinct, indices[1:]


def _is_search_fast(ids: Tensor) -> bool:
    backend = keras.backend.backend()
    if backend == "torch":
        return ids.device.type == "cpu"
    if backend == "jax" or ids.shape[0] == 1:
        return False
    import tensorflow as tf

    # tf.unique has no kernel for GPUs. XLA computes as many rows as there are tokens: on a CPU a
    # step then takes as long with the search as without.
    return not tf.config.list_logical_devices("GPU")


def _tensorflow_distinct_rows(rows: Tensor, n_ids: int) -> tuple[Tensor, Tensor]:
    """Find distinct rows with ``tf.unique``.

    ``tf.unique`` reads single numbers, and unlike ``UniqueV2`` it can be exported to ONNX. So read
    a few ids of each row as the digits of one number, and add them to the index of the ids before
    among the distinct ones.
    """
    import tensorflow as tf

    # Indices have at most 30 bits, and a number made of ``size`` ids at most 33: int64 has room for
    # both.
    size = int(33 / math.log2(n_ids))
    padded = tf.pad(rows, [[0, 0], [0, -rows.shape[-1] % size]])
    groups = tf.reshape(padded, (-1, padded.shape[-1] // size, size))
    numbers = tf.reduce_sum(tf.cast(groups, "int64") * [n_ids**i for i in range(size)], axis=2)
    indices = tf.zeros_like(numbers[:, 0])
    for number in tf.unstack(numbers, axis=1):
        distinct, indices = tf.unique(indices * n_ids**size + number, "int64")
    places = tf.range(tf.shape(indices, "int64")[0])
    # Any place of a distinct row will do.
    places = tf.tensor_scatter_nd_update(tf.zeros_like(distinct), indices[:, None], places)
    return tf.gather(rows, places), indices
