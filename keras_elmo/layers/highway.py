"""The highway of the character CNN (Srivastava et al., 2015)."""

import keras
from keras import ops

from keras_elmo.layers.backend.half_precision import affine
from keras_elmo.layers.freezable_layer import FreezableLayer


@keras.saving.register_keras_serializable(package="keras_elmo")
class Highway(FreezableLayer):
    """Let a gate choose, feature by feature, between a transform and the input itself.

    ``gate * relu(x W_transform + b_transform) + (1 - gate) * x`` with
    ``gate = sigmoid(x W_gate + b_gate)``. The gate starts nearly closed (bias -2).

    Args:
        **kwargs: Passed on to ``FreezableLayer``.

    Call arguments:
        inputs: Float, shape ``(..., width)``, ``width`` static.

    Returns:
        Float, shape of the input.

    Example:

    >>> keras.ops.shape(Highway()(keras.ops.ones((2, 7))))
    (2, 7)

    Reference:
        Srivastava et al., 2015, https://arxiv.org/abs/1505.00387
    """

    def build(self, input_shape):
        width = input_shape[-1]
        spread = keras.initializers.RandomNormal(stddev=width**-0.5)
        self.transform_kernel = self.add_weight(
            shape=(width, width), initializer=spread, name="transform_kernel"
        )
        self.transform_bias = self.add_weight(
            shape=(width,), initializer="zeros", name="transform_bias"
        )
        self.gate_kernel = self.add_weight(
            shape=(width, width), initializer=spread, name="gate_kernel"
        )
        self.gate_bias = self.add_weight(
            shape=(width,), initializer=keras.initializers.Constant(-2.0), name="gate_bias"
        )

    def call(self, inputs, product_dtype=None):
        transform, gate = (
            affine(inputs, *pair, product_dtype)
            for pair in (
                (self.transform_kernel, self.transform_bias),
                (self.gate_kernel, self.gate_bias),
            )
        )
        transform, gate = ops.relu(transform), ops.sigmoid(gate)
        return gate * transform + (1 - gate) * inputs

    def compute_output_shape(self, input_shape):
        return input_shape
