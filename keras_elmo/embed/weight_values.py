"""The values that weights have at one moment, and whether they still have them."""

import keras
import numpy as np


class WeightValues:
    """Hold the values of variables, to compute with them and to see when they have changed.

    Nothing that changes a weight is missed, be it ``assign``, ``load_weights``, a compiled
    training step or the backend's own operations on its tensors: on JAX arrays never change,
    so a new value is another array; on TensorFlow a value that is held keeps its memory, so
    what lies at the same place is the same value; all else is compared bit by bit.

    Args:
        variables: Keras variables.

    Example:

    >>> variable = keras.Variable([1.0, 2.0])
    >>> now = WeightValues([variable])
    >>> now.are_current()
    True
    >>> _ = variable.assign([1.0, 3.0])
    >>> now.are_current()
    False
    """

    def __init__(self, variables):
        self._variables = list(variables)
        self.values = [_read(variable) for variable in self._variables]
        if keras.backend.backend() == "torch":  # whose tensors change in place
            self.values = [value.clone() for value in self.values]

    def are_current(self) -> bool:
        """Return whether the variables have these values now."""
        pairs = zip(self._variables, self.values, strict=True)
        return all(_is_same(_read(variable), value) for variable, value in pairs)

    def as_float32(self) -> list[np.ndarray]:
        """Return the values as NumPy, float32."""
        cast = (keras.ops.cast(value, "float32") for value in self.values)
        return [keras.ops.convert_to_numpy(value) for value in cast]


def read_values(variables) -> list:
    """Return the values of variables as tensors of the backend, not copied."""
    return [_read(variable) for variable in variables]


def _read(variable):
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.convert_to_tensor(variable.value)
    return variable.value.detach() if backend == "torch" else variable.value


def _is_same(value, other):
    if value is other:
        return True
    backend = keras.backend.backend()
    if backend == "jax":
        return False
    value, other = _bits(value), _bits(other)
    if isinstance(value, np.ndarray):
        return value.ctypes.data == other.ctypes.data or np.array_equal(value, other)
    if backend == "torch":
        import torch

        return torch.equal(value, other)
    import tensorflow as tf

    return bool(tf.reduce_all(tf.equal(value, other)))


def _bits(value):
    """Return a tensor as integers, so that NaN is NaN; a NumPy view of it if it is on the CPU."""
    if keras.backend.backend() == "torch":
        import torch

        kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        value = value.view(kinds[value.element_size()])
        return value.numpy() if value.device.type == "cpu" else value
    import tensorflow as tf

    size = value.dtype.size
    if "CPU" not in value.device or value.dtype == tf.bfloat16:  # which NumPy cannot view
        value = tf.bitcast(value, {1: tf.int8, 2: tf.int16, 4: tf.int32, 8: tf.int64}[size])
    return np.asarray(memoryview(value)).view(f"i{size}") if "CPU" in value.device else value
