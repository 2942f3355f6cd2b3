"""The highway layer of the character CNN (Srivastava et al., 2015)."""

import keras
from keras import ops

from keras_elmo.layers.backend.half_precision import mixed_dense
from keras_elmo.layers.freezable_layer import FreezableLayer
from keras_elmo.utils.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_elmo")
class Highway(FreezableLayer):
    """Mix a transform of the input with the input itself, by a gate for each feature.

    The output is ``gate * relu(x W_transform + b_transform) + (1 - gate) * x`` with
    ``gate = sigmoid(x W_gate + b_gate)``. The bias of the gate starts at -2, so that an
    untrained layer passes most of its input on.

    Args:
        **kwargs: Arguments of ``FreezableLayer``.

    Call arguments:
        inputs: Float, shape ``(..., width)``; ``width`` static.
        product_dtype: str or None. Dtype of the matrix products; None for the dtype of the
            inputs.

    Returns:
        Float, shape of the inputs.

    Examples:
        >>> keras.ops.shape(Highway()(keras.ops.ones((2, 7))))
        (2, 7)

    Reference:
        Srivastava et al., 2015, https://arxiv.org/abs/1505.00387
    """

    def build(self, input_shape: tuple) -> None:
        width = input_shape[-1]
        initializer = keras.initializers.RandomNormal(stddev=width**-0.5)
        self.transform_kernel = self.add_weight(
            shape=(width, width), initializer=initializer, name="transform_kernel"
        )
        self.transform_bias = self.add_weight(
            shape=(width,), initializer="zeros", name="transform_bias"
        )
        self.gate_kernel = self.add_weight(
            shape=(width, width), initializer=initializer, name="gate_kernel"
        )
        self.gate_bias = self.add_weight(
            shape=(width,), initializer=keras.initializers.Constant(-2.0), name="gate_bias"
        )

    def call(self, inputs: Tensor, product_dtype: str | None = None) -> Tensor:
        # Inside call, Keras casts the weights to the compute dtype.
        transform = mixed_dense(inputs, self.transform_kernel, self.transform_bias, product_dtype)
        transform = ops.relu(transform)
        gate = ops.sigmoid(mixed_dense(inputs, self.gate_kernel, self.gate_bias, product_dtype))
        return gate * transform + (1 - gate) * inputs

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape
