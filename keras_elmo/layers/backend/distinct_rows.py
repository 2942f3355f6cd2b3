"""Find the distinct tokens of a batch, so that each is computed once."""

from collections.abc import Hashable, Iterable
from typing import TypeVar

import keras
import numpy as np
from keras import ops

from keras_elmo.utils.typing import Tensor

Token = TypeVar("Token", bound=Hashable)


def distinct_tokens(tokens: Iterable[Token]) -> tuple[list[Token], np.ndarray]:
    """Return the distinct tokens in the order of their first use, and the index of every token.

    Examples:
        >>> distinct_tokens(["a", "b", "a"])
        (['a', 'b'], array([0, 1, 0]))
    """
    places: dict[Token, int] = {}
    indices = [places.setdefault(token, len(places)) for token in tokens]
    return list(places), np.array(indices, "int64")


def distinct_rows(ids: Tensor, n_ids: int) -> tuple[Tensor, Tensor | None]:
    """Find the distinct tokens in a batch of character ids, where this saves time.

    Args:
        ids: int, shape ``(batch, tokens, characters)``.
        n_ids: int. Number of different ids, 0 included.

    Returns:
        The distinct rows, shape ``(n, characters)``, and for every token its index among them,
        shape ``(batch * tokens,)``. All rows and None where the search is impossible or slow: JAX
        and XLA compile for fixed sizes, GPUs are slow at it, and one sentence, which LiteRT
        exports have, repeats few tokens.
    """
    rows = ops.reshape(ids, (-1, ops.shape(ids)[-1]))
    if not _is_search_fast(ids):
        return rows, None
    # A row of padding in front, because convolutions cannot read a batch of no row.
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

    # tf.unique has no kernel for GPUs, and sorts under XLA.
    return not (_in_xla() or tf.config.list_logical_devices("GPU"))


def _tensorflow_distinct_rows(rows: Tensor, n_ids: int) -> tuple[Tensor, Tensor]:
    """Find distinct rows with ``tf.unique``.

    ``tf.unique`` reads single numbers, and unlike ``UniqueV2`` it can be exported to ONNX.
    So read each row as a number with one digit for each id. Before the number could
    overflow, replace it by its index among the distinct numbers.
    """
    import tensorflow as tf

    first, *columns = tf.unstack(tf.cast(rows, "int64"), num=rows.shape[-1], axis=1)
    key, most = first, n_ids
    for column in columns:
        if most * n_ids >= 2**63:
            key, most = tf.unique(key, "int64")[1], 2**31  # There are fewer than 2**31 rows.
        key, most = key * n_ids + column, most * n_ids
    distinct, indices = tf.unique(key, "int64")
    places = tf.range(tf.shape(indices, "int64")[0])
    # Any place of a distinct row will do.
    places = tf.tensor_scatter_nd_update(tf.zeros_like(distinct), indices[:, None], places)
    return tf.gather(rows, places), indices


def _in_xla() -> bool:
    """Return whether TensorFlow builds a graph for XLA. There is no public way to find out."""
    import tensorflow as tf
    from tensorflow.python.ops import control_flow_util

    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
