"""The base class of layers that take strings."""

import sys
from typing import Any

import keras

from keras_elmo.utils.checks import invalid


class StringLayer(keras.layers.Layer):
    """A layer that takes lists of str, or TensorFlow tensors of strings in a model or tf.data."""

    def __init__(self, **kwargs: Any) -> None:
        # A Sequential without an Input uses the dtype of its first layer as the input dtype.
        super().__init__(**{"dtype": "string", **kwargs})
        self.supports_jit = False  # XLA has no strings
        # Keras would convert lists to float tensors and refuse strings. Both switches are
        # private; KerasHub uses them too.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        # Keras would search every string of a list for tensors, which takes ten times as long.
        if isinstance(inputs, keras.KerasTensor) or tensorflow_of(inputs):
            return super().__call__(inputs, *args, **kwargs)
        return self.call(inputs)

    def check_tensor(self, inputs: Any, axes: str, advice: str) -> None:
        """Refuse other tensors than strings with these axes, and models of other backends."""
        name, backend = type(self).__name__, keras.backend.backend()
        if isinstance(inputs, keras.KerasTensor) and backend != "tensorflow":
            expected = f"{name} can be part of a model only on TensorFlow"
            raise invalid(expected, f"keras.backend.backend()={backend!r}", advice)
        dtype = keras.backend.standardize_dtype(inputs.dtype)
        if dtype != "string" or len(inputs.shape) != len(axes.split()):
            expected = f"{name} expects strings of shape ({axes})"
            raise invalid(expected, f"dtype={dtype}, shape={inputs.shape}", advice)


def tensorflow_of(inputs: Any) -> Any:
    """Return the module of TensorFlow for a tensor of TensorFlow, and None for other inputs."""
    tf = sys.modules.get("tensorflow")
    return tf if tf is not None and isinstance(inputs, tf.Tensor | tf.RaggedTensor) else None
