"""The LSTM with a projected output, and clips on its cell and output (Sak et al., 2014)."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_elmo.layers.backend.custom_gradient import call_with_gradient
from keras_elmo.layers.backend.half_precision import mixed_dense, mixed_matmul
from keras_elmo.layers.backend.scan import scan
from keras_elmo.layers.freezable_layer import FreezableLayer
from keras_elmo.utils.typing import Tensor


def projected_lstm(
    from_inputs: Tensor,
    recurrent_kernel: Tensor,
    projection: Tensor | None = None,
    cell_clip: float | None = None,
    projection_clip: float | None = None,
    mask: Tensor | None = None,
    state: Any = None,
    reverse: bool = False,
    product_dtype: str | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run an LSTM whose projected output enters the next step.

    The caller computes ``z = x W + b``, the part of the gates that comes from the inputs. Its ``b``
    includes the 1 that is added to the bias of the forget gate. The gates are in the order of
    Keras::

        i, f, candidate, o = split(z + h U)
        c = clip(sigmoid(f) * c + sigmoid(i) * tanh(candidate), cell_clip)
        h = clip((sigmoid(o) * tanh(c)) P, projection_clip)

    The next step receives the clipped values.

    Args:
        from_inputs: ``z``, float, shape ``(tokens, batch, 4 * lstm_dim)``.
        recurrent_kernel: ``U``, float, shape ``(projection_dim, 4 * lstm_dim)``.
        projection: ``P``, float, shape ``(lstm_dim, projection_dim)``; or None if the two
            sizes are equal. Without a projection, ``projection_clip`` has no effect.
        cell_clip: float or None. Bound on the absolute cell state.
        projection_clip: float or None. Bound on the absolute projected output.
        mask: Bool, shape ``(tokens, batch)``, True for tokens; or None. Padding does not
            change the state, and its output is 0.
        state: Pair ``(h, c)`` for the first step, float, shapes ``(batch, projection_dim)``
            and ``(batch, lstm_dim)``; None for zeros.
        reverse: bool. Run from the last token to the first. The outputs keep the order of the
            inputs.
        product_dtype: str or None. Dtype of the matrix products; None for the dtype of their
            inputs.

    Returns:
        The outputs, float, shape ``(tokens, batch, projection_dim)``, and the final
        ``(h, c)``, all in the dtype of ``state``; without a state, in the dtype of the weights.
        There is no second derivative.

    Examples:
        >>> recurrent_kernel, projection = keras.ops.ones((3, 20)), keras.ops.ones((5, 3))
        >>> from_inputs = keras.ops.ones((7, 2, 20))
        >>> outputs, (h, c) = projected_lstm(from_inputs, recurrent_kernel, projection)
        >>> keras.ops.shape(outputs), keras.ops.shape(c)
        ((7, 2, 3), (2, 5))

    Reference:
        Sak et al., 2014, https://arxiv.org/abs/1402.1128
    """
    projection_dim, lstm_dim = recurrent_kernel.shape[0], recurrent_kernel.shape[1] // 4
    if state is None:
        batch, dtype = ops.shape(from_inputs)[1], recurrent_kernel.dtype
        state = [ops.zeros((batch, size), dtype) for size in (projection_dim, lstm_dim)]
    if mask is not None:
        mask = ops.cast(mask, "bool")[..., None]
    if projection is None:  # the output is not clipped
        projection_clip = None
    outputs, h, c = call_with_gradient(
        _forward,
        _forward_with_residuals,
        _backward,
        options=(cell_clip, projection_clip, reverse, product_dtype),
        tensors=(from_inputs, *state, mask),
        weights=(recurrent_kernel, projection),
    )
    return outputs, (h, c)


def _forward(options: tuple, *arguments: Tensor) -> tuple:
    """Loop over the tokens. ``projected_lstm`` passes its options, tensors and weights."""
    from_inputs, h, c, mask, recurrent_kernel, projection = arguments
    cell_clip, projection_clip, reverse, product_dtype = options
    weights = _cast(product_dtype, recurrent_kernel, projection)
    constants = (*weights, cell_clip, projection_clip)
    inputs = (from_inputs, mask)
    output_shapes = [(from_inputs.shape[1], h.shape[-1])]  # (batch, projection_dim)
    (h, c), (outputs,) = scan(_output_step, (h, c), inputs, constants, output_shapes, reverse)
    return _without_padding(outputs, mask), h, c


def _step(constants: tuple, carry: tuple, inputs: tuple) -> tuple[tuple, tuple]:
    """Compute one step. Return the new ``(h, c)``, and the activations of the gates."""
    recurrent_kernel, projection, cell_clip, projection_clip = constants
    from_inputs, is_token = inputs
    h, c = carry
    # Multiply in the dtype of the weights; the result has the dtype of h.
    from_h = mixed_matmul(h, recurrent_kernel, recurrent_kernel.dtype)
    gates = ops.cast(from_inputs, h.dtype) + from_h
    i, f, candidate, o = ops.split(gates, 4, axis=-1)
    i, f, candidate, o = ops.sigmoid(i), ops.sigmoid(f), ops.tanh(candidate), ops.sigmoid(o)
    c = _clip(f * c + i * candidate, cell_clip)
    h = o * ops.tanh(c)
    if projection is not None:
        h = mixed_matmul(h, projection, projection.dtype)
    h = _clip(h, projection_clip)
    return _where(is_token, (h, c), carry), (i, f, candidate, o)


def _output_step(constants: tuple, carry: tuple, inputs: tuple) -> tuple[tuple, tuple]:
    (h, c), _ = _step(constants, carry, inputs)
    return (h, c), (h,)


# The gradient: a forward pass that stores what the backward pass needs, and the backward pass.
# Automatic differentiation would add up the gradients of the weights step by step. Here the
# backward loop only carries the errors back. After the loop, one matrix product over all steps
# computes the gradient of each weight. On TensorFlow a training step of the LSTMs took 0.55 of the
# time of keras.layers.RNN. The activations of the gates are stored in the dtype of from_inputs.


def _forward_with_residuals(options: tuple, *arguments: Tensor) -> tuple[tuple, tuple]:
    """Run ``_forward``, and store the states and the activations after every step."""
    from_inputs, *start, mask, recurrent_kernel, projection = arguments
    cell_clip, projection_clip, reverse, product_dtype = options
    weights = _cast(product_dtype, recurrent_kernel, projection)
    constants = (*weights, cell_clip, projection_clip)
    h, c = start
    shapes = [(from_inputs.shape[1], x.shape[-1]) for x in (h, c, from_inputs)]
    dtypes = [x.dtype for x in (h, c, from_inputs)]
    inputs = (from_inputs, mask)
    (h, c), steps = scan(_storing_step, (h, c), inputs, constants, shapes, reverse, dtypes)
    outputs = _without_padding(steps[0], mask)
    return (outputs, h, c), (*start, *steps, mask, recurrent_kernel, projection)


def _storing_step(constants: tuple, carry: tuple, inputs: tuple) -> tuple[tuple, tuple]:
    (h, c), activations = _step(constants, carry, inputs)
    stored = [ops.cast(x, inputs[0].dtype) for x in activations]
    return (h, c), (h, c, ops.concatenate(stored, axis=-1))


def _backward(options: tuple, residuals: tuple, upstream: tuple) -> tuple:
    # h, c and activations contain the values of all steps; start is the state before them.
    *start, h, c, activations, mask, recurrent_kernel, projection = residuals
    cell_clip, projection_clip, reverse, product_dtype = options
    h_before, c_before = (_shift(x, first, reverse) for x, first in zip((h, c), start))
    transposed = [
        None if weight is None else ops.transpose(weight)
        for weight in _cast(product_dtype, recurrent_kernel, projection)
    ]
    d_outputs, d_h, d_c = upstream
    d_state, (d_gates, d_unclipped) = scan(
        _backward_step,
        (d_h, d_c),
        (_without_padding(d_outputs, mask), h, c, c_before, activations, mask),
        (*transposed, cell_clip, projection_clip),
        [(None, activations.shape[-1]), (None, h.shape[-1])],
        not reverse,
        [activations.dtype, h.dtype],
    )
    d_kernel, d_projection = _sum_of_outer_products(h_before, d_gates, product_dtype), None
    if projection is not None:
        # The last quarter of the activations is the output gate.
        unprojected = ops.cast(activations[..., -c.shape[-1] :], c.dtype) * ops.tanh(c)
        d_projection = _sum_of_outer_products(unprojected, d_unclipped, product_dtype)
    return d_gates, *d_state, None, d_kernel, d_projection


def _backward_step(constants: tuple, carry: tuple, inputs: tuple) -> tuple[tuple, tuple]:
    """Carry the errors one step back; the weights in ``constants`` are transposed."""
    recurrent_kernel, projection, cell_clip, projection_clip = constants
    upstream, h, c, c_before, activations, is_token = inputs
    dtype = activations.dtype
    i, f, candidate, o = (ops.cast(x, c.dtype) for x in ops.split(activations, 4, axis=-1))
    # At padding, the errors pass unchanged, and the gradients of the gates are 0.
    d_h, d_c = carry if is_token is None else (ops.where(is_token, x, 0) for x in carry)
    d_h = _stop_if_clipped(d_h + upstream, h, projection_clip)
    d_unprojected = d_h if projection is None else mixed_matmul(d_h, projection, projection.dtype)
    tanh_c = ops.tanh(c)
    d_c = _stop_if_clipped(d_c + d_unprojected * o * (1 - tanh_c * tanh_c), c, cell_clip)
    d_gates = [
        d_c * candidate * i * (1 - i),
        d_c * c_before * f * (1 - f),
        d_c * i * (1 - candidate * candidate),
        d_unprojected * tanh_c * o * (1 - o),
    ]
    d_gates = ops.concatenate([ops.cast(x, dtype) for x in d_gates], axis=-1)
    d_h_before = mixed_matmul(d_gates, recurrent_kernel, recurrent_kernel.dtype)
    d_h_before = ops.cast(d_h_before, h.dtype)
    return _where(is_token, (d_h_before, d_c * f), carry), (d_gates, d_h)


def _cast(dtype: str | None, *weights: Tensor | None) -> list:
    """Cast the weights once, before the loop over the steps."""
    return [w if w is None or dtype is None else ops.cast(w, dtype) for w in weights]


def _where(is_token: Tensor | None, new: tuple, old: tuple) -> tuple:
    if is_token is None:
        return new
    return tuple(ops.where(is_token, x, y) for x, y in zip(new, old))


def _without_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    return x if mask is None else ops.where(mask, x, ops.zeros_like(x))


def _shift(states: Tensor, first: Tensor, reverse: bool) -> Tensor:
    """Return the states before every step, from the states after every step."""
    if reverse:
        return ops.concatenate([states[1:], first[None]])
    return ops.concatenate([first[None], states[:-1]])


def _clip(x: Tensor, bound: float | None) -> Tensor:
    return x if bound is None else ops.clip(x, -bound, bound)


def _stop_if_clipped(gradient: Tensor, x: Tensor, bound: float | None) -> Tensor:
    """Return the gradient, with 0 where ``x``, the value after the clip, is at the bound."""
    if bound is None:
        return gradient
    return ops.where(ops.abs(x) < ops.cast(bound, x.dtype), gradient, ops.zeros_like(gradient))


def _sum_of_outer_products(x: Tensor, y: Tensor, product_dtype: str | None) -> Tensor:
    """Return the outer products of the features, summed over tokens and batch."""
    if keras.backend.backend() == "jax":
        # If devices share the batch, merging its axis with the tokens would make each device
        # gather the whole batch.
        dtype = product_dtype or x.dtype
        product = ops.tensordot(ops.cast(x, dtype), ops.cast(y, dtype), axes=((0, 1), (0, 1)))
        return ops.cast(product, x.dtype)
    x, y = (ops.reshape(a, (-1, a.shape[-1])) for a in (x, y))
    return mixed_matmul(ops.transpose(x), y, product_dtype)


@keras.saving.register_keras_serializable(package="keras_elmo")
class ProjectedLSTM(FreezableLayer):
    """Run ``projected_lstm`` over sentences, forward or backward.

    The inputs enter the gates as ``x kernel + bias``. The layer adds 1 to the bias of the forget
    gate; the weight files do not include this 1.

    Args:
        lstm_dim: int. Features of the cell state.
        projection_dim: int. Features of the output. If it equals ``lstm_dim``, there is no
            projection, and ``projection_clip`` has no effect.
        cell_clip: float or None. Bound on the absolute cell state.
        projection_clip: float or None. Bound on the absolute projected output.
        go_backwards: bool. Read every sentence from its last token to its first. The outputs
            keep the order of the inputs, unlike in the RNN layers of Keras.
        **kwargs: Arguments of ``FreezableLayer``.

    Call arguments:
        inputs: Float, shape ``(batch, tokens, features)``.
        mask: Bool, shape ``(batch, tokens)``, True for tokens, padding on the right; or None.
        initial_state: Pair ``[h, c]`` for the first token; None for zeros.

    Returns:
        The outputs, float, shape ``(batch, tokens, projection_dim)``, and the final
        ``[h, c]``, shapes ``(batch, projection_dim)`` and ``(batch, lstm_dim)``.
        Gradients pass through the initial and the final state; there is no second derivative.

    Masking: padding does not change the state; its output is 0.

    Examples:
        >>> lstm = ProjectedLSTM(lstm_dim=5, projection_dim=3, go_backwards=True)
        >>> outputs, (h, c) = lstm(keras.ops.ones((2, 7, 4)))
        >>> keras.ops.shape(outputs)
        (2, 7, 3)

    Reference:
        Sak et al., 2014, https://arxiv.org/abs/1402.1128
    """

    def __init__(
        self,
        lstm_dim: int,
        projection_dim: int,
        cell_clip: float | None = None,
        projection_clip: float | None = None,
        go_backwards: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.lstm_dim = lstm_dim
        self.projection_dim = projection_dim
        self.cell_clip = cell_clip
        self.projection_clip = projection_clip
        self.go_backwards = go_backwards
        self.supports_masking = True

    def build(self, input_shape: tuple) -> None:
        n_gates = 4 * self.lstm_dim
        self.kernel = self.add_weight(shape=(input_shape[-1], n_gates), name="kernel")
        self.bias = self.add_weight(shape=(n_gates,), initializer="zeros", name="bias")
        self.recurrent_kernel = self.add_weight(
            shape=(self.projection_dim, n_gates), name="recurrent_kernel"
        )
        self.projection = None
        if self.projection_dim != self.lstm_dim:
            self.projection = self.add_weight(
                shape=(self.lstm_dim, self.projection_dim), name="projection"
            )

    def call(
        self, inputs: Tensor, mask: Tensor | None = None, initial_state: Any = None
    ) -> tuple[Tensor, list]:
        # Transpose the inputs and not the gates, which have many times more features.
        inputs = ops.transpose(inputs, (1, 0, 2))
        mask = None if mask is None else ops.transpose(mask)
        outputs, state = self.run(inputs, mask, initial_state, self.go_backwards)
        return ops.transpose(outputs, (1, 0, 2)), list(state)

    def run(
        self,
        inputs: Tensor,
        mask: Tensor | None = None,
        state: Any = None,
        reverse: bool = False,
        product_dtype: str | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Run the LSTM over inputs with time on the first axis.

        Args:
            inputs: Float, shape ``(tokens, batch, features)``.
            mask: Bool, shape ``(tokens, batch)``, or None; see ``projected_lstm``.
            state: Pair ``(h, c)`` for the first step, or None.
            reverse: bool. Run from the last token to the first. ``call`` passes
                ``go_backwards``.
            product_dtype: str or None. Dtype of all matrix products, ``x W`` included.

        Returns:
            The outputs and the final ``(h, c)``, as from ``projected_lstm``.
        """
        kernel, bias, recurrent_kernel, projection = self.in_compute_dtype(
            self.kernel, self.bias, self.recurrent_kernel, self.projection
        )
        forget_bias = np.repeat([0, 1, 0, 0], self.lstm_dim).astype("float32")  # 1 for f
        bias = bias + ops.cast(forget_bias, self.compute_dtype)
        # x W + b of all tokens is large, so it is computed and kept in the dtype of the products.
        inputs = ops.cast(inputs, product_dtype or self.compute_dtype)
        kernel, bias = (ops.cast(x, inputs.dtype) for x in (kernel, bias))
        return projected_lstm(
            mixed_dense(inputs, kernel, bias),
            recurrent_kernel,
            projection,
            self.cell_clip,
            self.projection_clip,
            mask,
            None if state is None else [ops.cast(x, self.compute_dtype) for x in state],
            reverse,
            product_dtype,
        )

    def compute_mask(self, inputs: Tensor, mask: Tensor | None = None) -> tuple:
        return mask, [None, None]

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        batch = input_shape[0]
        state = [(batch, self.projection_dim), (batch, self.lstm_dim)]
        return (*input_shape[:-1], self.projection_dim), state

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "lstm_dim": self.lstm_dim,
            "projection_dim": self.projection_dim,
            "cell_clip": self.cell_clip,
            "projection_clip": self.projection_clip,
            "go_backwards": self.go_backwards,
        }
