"""Run the steps of an LSTM, with a written-out gradient.

Automatic differentiation would add up the gradients of the weights step by step. Here the backward
loop only carries the errors back. After the loop, one matrix product over all steps computes the
gradient of each weight. On TensorFlow a training step of the LSTMs took 0.55 of the time of
``keras.layers.RNN``.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_elmo.layers.backend.custom_gradient import call_with_gradient
from keras_elmo.layers.backend.half_precision import mixed_matmul
from keras_elmo.layers.backend.scan import scan, stack_steps
from keras_elmo.utils.typing import Tensor


def run_steps(
    step: Callable,
    from_inputs: Tensor,
    state: Any,
    is_token: Tensor | None,
    weights: tuple,
    clips: tuple,
    product_dtype: str | None = None,
    differentiable: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run ``step``, which is ``lstm_step``, over all tokens.

    ``from_inputs`` is ``z`` of all tokens, float, shape ``(tokens, batch, 4 * lstm_dim)``.
    ``lstm_step`` describes the weights and clips, and ``ProjectedLSTM`` the other arguments.
    ``differentiable`` says whether gradients pass to the inputs, the state and the weights.

    Returns the outputs, shape ``(tokens, batch, projection_dim)``, and the final ``h`` and ``c``,
    all in the dtype of ``state``.
    """
    if is_token is not None:
        is_token = ops.cast(is_token, "bool")[..., None]
    return call_with_gradient(
        _forward,
        _backward,
        options=(step, *clips, product_dtype),
        tensors=(from_inputs, *state, is_token),
        weights=weights,
        differentiable=differentiable,
    )


def _forward(
    stores: bool,
    options: tuple,
    from_inputs: Tensor,
    h: Tensor,
    c: Tensor,
    is_token: Tensor | None,
    *weights: Tensor | None,
) -> tuple[tuple, tuple]:
    """Run the steps; with ``stores``, also return what ``_backward`` reads."""
    step, *clips, product_dtype = options
    dtypes = [c.dtype, *4 * [from_inputs.dtype]] if stores else []
    state, steps = scan(
        _scan_step(step, stores),
        (h, c),
        (from_inputs, is_token),
        (*_cast(product_dtype, *weights), *clips),
        ((h.dtype, h.shape[-1]), *((dtype, c.shape[-1]) for dtype in dtypes)),
    )
    outputs = stack_steps(steps[0])
    residuals = (h, outputs, state[1], *steps[1:], is_token, *weights)
    return (_without_padding(outputs, is_token), *state), residuals


@functools.cache  # JAX compiles again for every new function.
def _scan_step(step: Callable, stores: bool) -> Callable:
    """Return ``step`` with the output ``h``, or ``h``, the ``c`` before it and the activations."""

    def scan_step(weights: tuple, state: tuple, inputs: tuple) -> tuple[tuple, tuple]:
        from_inputs, is_token = inputs
        new_state, activations = step(weights, state, from_inputs)
        h, c = _where(is_token, new_state, state)
        if not stores:
            return (h, c), (h,)
        return (h, c), (h, state[1], *(ops.cast(x, from_inputs.dtype) for x in activations))

    return scan_step


def _backward(options: tuple, residuals: tuple, upstream: tuple) -> tuple:
    # first_h comes before the first step, last_c after the last; the others are of all steps.
    first_h, h, last_c, *stored, is_token, recurrent_kernel, projection = residuals
    _, cell_clip, projection_clip, product_dtype = options
    transposed = [
        None if weight is None else ops.transpose(weight)
        for weight in _cast(product_dtype, recurrent_kernel, projection)
    ]
    d_outputs, d_h, d_c = upstream
    lstm_dim = recurrent_kernel.shape[-1] // 4
    d_state, steps = scan(
        _backward_step,
        (d_h, d_c, last_c),
        (h, *stored, is_token, _without_padding(d_outputs, is_token)),
        (*transposed, cell_clip, projection_clip),
        ((stored[-1].dtype, 4 * lstm_dim), (h.dtype, lstm_dim), (h.dtype, h.shape[-1])),
        reverse=True,
    )
    d_gates, unprojected, d_unclipped = map(stack_steps, steps)
    h_before = ops.concatenate([first_h[None], h[:-1]])
    d_kernel, d_projection = _sum_of_outer_products(h_before, d_gates, product_dtype), None
    if projection is not None:
        d_projection = _sum_of_outer_products(unprojected, d_unclipped, product_dtype)
    return d_gates, *d_state[:2], None, d_kernel, d_projection


def _backward_step(constants: tuple, carry: tuple, inputs: tuple) -> tuple[tuple, tuple]:
    """Carry the errors and ``c`` one step back; the weights in ``constants`` are transposed."""
    recurrent_kernel, projection, cell_clip, projection_clip = constants
    c = carry[2]
    h, c_before, *activations, is_token, upstream = inputs
    dtype = activations[0].dtype
    i, f, candidate, o = (ops.cast(x, c.dtype) for x in activations)
    # At padding, the errors pass unchanged, and the gradients of the gates are 0.
    d_h, d_c = (_without_padding(x, is_token) for x in carry[:2])
    d_h = _stop_if_clipped(d_h + upstream, h, projection_clip)
    d_unprojected = d_h if projection is None else mixed_matmul(d_h, projection)
    tanh_c = ops.tanh(c)
    unprojected = o * tanh_c
    d_c = _stop_if_clipped(d_c + d_unprojected * o * (1 - tanh_c * tanh_c), c, cell_clip)
    d_gates = [
        d_c * candidate * i * (1 - i),
        d_c * c_before * f * (1 - f),
        d_c * i * (1 - candidate * candidate),
        d_unprojected * unprojected * (1 - o),
    ]
    d_gates = ops.concatenate([ops.cast(x, dtype) for x in d_gates], axis=-1)
    d_h_before = ops.cast(mixed_matmul(d_gates, recurrent_kernel), h.dtype)
    errors = _where(is_token, (d_h_before, d_c * f), carry[:2])
    return (*errors, c_before), (d_gates, unprojected, d_h)


def _cast(dtype: str | None, *weights: Tensor | None) -> list:
    """Cast the weights once, before the loop over the steps."""
    return [w if w is None or dtype is None else ops.cast(w, dtype) for w in weights]


def _where(is_token: Tensor | None, new: tuple, old: tuple) -> tuple:
    if is_token is None:
        return new
    return tuple(ops.where(is_token, x, y) for x, y in zip(new, old))


def _without_padding(x: Tensor, is_token: Tensor | None) -> Tensor:
    return x if is_token is None else ops.where(is_token, x, ops.zeros_like(x))


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
