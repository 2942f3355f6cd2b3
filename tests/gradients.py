"""Gradients on every backend."""

import numpy as np

from tests.conftest import BACKEND, numpy


def gradients(loss, layer) -> list:
    """The gradients of ``loss()`` with respect to the trainable weights of a layer, NumPy."""
    variables = layer.trainable_weights
    if BACKEND == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = loss()
        found = tape.gradient(value, [v.value for v in variables])
        return [numpy(tf.convert_to_tensor(gradient)) for gradient in found]
    if BACKEND == "torch":
        import torch

        found = torch.autograd.grad(loss(), [v.value for v in variables])
        return [numpy(gradient) for gradient in found]
    import jax
    import keras

    def of_values(values):
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return loss()

    return [np.asarray(g) for g in jax.grad(of_values)([v.value for v in variables])]
