"""Look up rows of a table, with a dense gradient on every backend."""

from keras import ops

from keras_elmo.layers.backend.custom_gradient import call_with_gradient
from keras_elmo.utils.typing import Tensor


def look_up(table: Tensor, ids: Tensor) -> Tensor:
    """Take rows of the table, with a dense gradient.

    On TensorFlow the gradient of ``ops.take`` is sparse, with one row for every id. If an id
    occurs twice, the norm of those rows is wrong, and so is a clip by the norm.
    """
    options = (int(table.shape[0]),)
    functions = (_take, _take_with_residuals, _take_backward)
    [rows] = call_with_gradient(*functions, options, (ids,), (table,))
    return rows


def _take(options: tuple, ids: Tensor, table: Tensor) -> tuple:
    return (ops.take(table, ids, axis=0),)


def _take_with_residuals(options: tuple, ids: Tensor, table: Tensor) -> tuple:
    return _take(options, ids, table), (ids,)


def _take_backward(options: tuple, residuals: tuple, upstream: tuple) -> tuple:
    ids, gradients = ops.reshape(residuals[0], (-1,)), upstream[0]
    gradients = ops.reshape(gradients, (-1, gradients.shape[-1]))
    return None, ops.segment_sum(gradients, ids, num_segments=options[0])
