"""The LSTM with a projected output, and clips on its cell and output (Sak et al., 2014)."""

from typing import Any

import numpy as np
from keras import ops

from keras_elmo.layers.backend.half_precision import mixed_dense, mixed_matmul
from keras_elmo.layers.backend.lstm_gradient import run_steps
from keras_elmo.layers.bilm_part import BiLMPart
from keras_elmo.utils.typing import Tensor


def lstm_step(constants: tuple, state: tuple, from_inputs: Tensor) -> tuple[tuple, tuple]:
    """Compute one step of an LSTM.

    The gates are in the order of Keras, and the next step receives the clipped values::

        i, f, candidate, o = split(z + h U)
        c = clip(sigmoid(f) * c + sigmoid(i) * tanh(candidate), cell_clip)
        h = clip((sigmoid(o) * tanh(c)) P, projection_clip)

    Args:
        constants: tuple. ``U``, float, shape ``(projection_dim, 4 * lstm_dim)``; ``P``, float,
            shape ``(lstm_dim, projection_dim)``, or None; ``cell_clip`` and ``projection_clip``,
            float or None; the second is None without ``P``.
        state: Pair ``(h, c)``, float, shapes ``(batch, projection_dim)`` and
            ``(batch, lstm_dim)``.
        from_inputs: ``z``, the part of the gates that comes from the inputs, float, shape
            ``(batch, 4 * lstm_dim)``.

    Returns:
        The new ``(h, c)``, and the activations ``i``, ``f``, ``candidate`` and ``o``.
    """
    recurrent_kernel, projection, cell_clip, projection_clip = constants
    h, c = state
    from_h = mixed_matmul(h, recurrent_kernel)
    i, f, candidate, o = ops.split(ops.cast(from_inputs, h.dtype) + from_h, 4, axis=-1)
    i, f, candidate, o = ops.sigmoid(i), ops.sigmoid(f), ops.tanh(candidate), ops.sigmoid(o)
    c = _clip(f * c + i * candidate, cell_clip)
    h = o * ops.tanh(c)
    if projection is not None:
        h = mixed_matmul(h, projection)
    return (_clip(h, projection_clip), c), (i, f, candidate, o)


def _clip(x: Tensor, bound: float | None) -> Tensor:
    return x if bound is None else ops.clip(x, -bound, bound)


class ProjectedLSTM(BiLMPart):
    """Run an LSTM whose projected output enters the next step, with time on the first axis.

    The layer computes ``z = x W + b`` for all tokens at once, then one ``lstm_step`` a token. It
    adds 1 to the bias of the forget gate; the weight files do not include this 1. If
    ``projection_dim`` equals ``lstm_dim``, there is no projection, and ``projection_clip`` has no
    effect.

    Args:
        config: ``BiLMConfig``. The architecture of the biLM.
        **kwargs: Arguments of ``BiLMPart``.

    Call arguments:
        inputs: Float, shape ``(tokens, batch, features)``.
        is_token: Bool, shape ``(tokens, batch)``, or None. Padding, where it is False, does not
            change the state, and its output is 0.
        state: Pair ``(h, c)`` for the first step; None for zeros.

    Returns:
        The outputs, float, shape ``(tokens, batch, projection_dim)``, and the final ``(h, c)``,
        shapes ``(batch, projection_dim)`` and ``(batch, lstm_dim)``. Gradients pass through the
        initial and the final state; there is no second derivative.

    Examples:
        >>> lstm = ProjectedLSTM(keras_elmo.BiLMConfig(lstm_dim=5, projection_dim=3))
        >>> outputs, (h, c) = lstm(keras.ops.ones((7, 2, 4)))
        >>> keras.ops.shape(outputs), keras.ops.shape(c)
        ((7, 2, 3), (2, 5))

    Reference:
        Sak et al., 2014, https://arxiv.org/abs/1402.1128
    """

    def build(self, input_shape: tuple) -> None:
        lstm_dim, projection_dim = self.config.lstm_dim, self.config.projection_dim
        self.kernel = self.add_weight(shape=(input_shape[-1], 4 * lstm_dim), name="kernel")
        self.bias = self.add_weight(shape=(4 * lstm_dim,), initializer="zeros", name="bias")
        self.recurrent_kernel = self.add_weight(
            shape=(projection_dim, 4 * lstm_dim), name="recurrent_kernel"
        )
        self.projection = None
        if projection_dim != lstm_dim:
            self.projection = self.add_weight(shape=(lstm_dim, projection_dim), name="projection")

    def call(
        self, inputs: Tensor, is_token: Tensor | None = None, state: Any = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        config = self.config
        if state is None:
            batch = ops.shape(inputs)[1]
            sizes = (config.projection_dim, config.lstm_dim)
            state = [ops.zeros((batch, size), self.compute_dtype) for size in sizes]
        # x W + b of all tokens is large, so it is computed and kept in the dtype of the products.
        dtype = self.product_dtype or self.compute_dtype
        forget_bias = np.repeat([0, 1, 0, 0], config.lstm_dim).astype("float32")  # 1 for f
        bias = self.bias + ops.cast(forget_bias, self.compute_dtype)
        from_inputs = mixed_dense(
            ops.cast(inputs, dtype), ops.cast(self.kernel, dtype), ops.cast(bias, dtype)
        )
        clips = (config.cell_clip, config.projection_clip if self.projection is not None else None)
        outputs, *state = run_steps(
            lstm_step,
            from_inputs,
            state,
            is_token,
            (self.recurrent_kernel, self.projection),
            clips,
            self.product_dtype,
            differentiable=not self.frozen,
        )
        return outputs, tuple(state)
