"""Gradients on every backend."""

import numpy as np

from tests.conftest import BACKEND, numpy


def gradients(loss, layer) -> list:
    """The gradients of ``loss()`` with respect to the trainable weights of a layer, NumPy."""
    found = gradients_of(loss, layer.trainable_weights)
    assert all(isinstance(gradient, np.ndarray) for gradient in found)
    return found


def gradients_of(loss, variables) -> list:
    """The gradients of ``loss()`` with respect to any variables; 0 for one without gradient."""
    if BACKEND == "jax":
        import jax
        import keras

        def of_values(values):
            with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
                return loss()

        return [np.asarray(g) for g in jax.grad(of_values)([v.value for v in variables])]
    if BACKEND == "torch":
        import torch

        values = [v.value.requires_grad_(True) for v in variables]
        value = loss()
        if not value.requires_grad:
            return [0] * len(values)
        found = torch.autograd.grad(value, values, allow_unused=True)
    else:
        import tensorflow as tf

        values = [v.value for v in variables]
        with tf.GradientTape() as tape:
            tape.watch(values)
            value = loss()
        found = [
            None if gradient is None else tf.convert_to_tensor(gradient)
            for gradient in tape.gradient(value, values)
        ]
    return [0 if gradient is None else numpy(gradient) for gradient in found]
