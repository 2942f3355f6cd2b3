"""A loop over time steps, written for each backend."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_elmo.layers.backend.tracing import is_exporting
from keras_elmo.utils.typing import Tensor


def scan(
    step: Callable,
    carry: tuple,
    inputs: tuple,
    constants: tuple,
    output_shapes: Sequence[tuple],
    reverse: bool = False,
    output_dtypes: Sequence | None = None,
) -> tuple[tuple, tuple]:
    """Run ``step`` over the first axis of the inputs, and stack its outputs.

    Args:
        step: function. Takes the constants, the carried tuple and one time step of every
            input; returns the new carried tuple and a tuple of outputs. Define it at the top
            level of a module, and pass all tensors as arguments. JAX would compile a closure
            again at every eager call.
        carry: tuple of tensors. The values that the first step receives.
        inputs: tuple of tensors and None, time on the first axis. The first must be a tensor.
            An input of None stays None in every step.
        constants: tuple of tensors, numbers and None. Shared by all steps.
        output_shapes: list of tuples. Shape of one time step of every output; None for
            unknown sizes. TensorFlow's ``TensorArray`` needs the shapes; LiteRT also needs the
            batch size, if it is known.
        reverse: bool. Run from the last time step to the first. The outputs keep the order of
            the inputs.
        output_dtypes: list of dtypes, one for every output; None for the dtype of the first
            carried tensor.

    Returns:
        The last carried tuple, and the tuple of outputs with time on the first axis.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        return _jax_scan()(step, reverse, constants, carry, inputs)
    if backend == "torch":
        return _torch_scan(step, carry, inputs, constants, reverse)
    if output_dtypes is None:
        output_dtypes = [carry[0].dtype] * len(output_shapes)
    return _tensorflow_scan(step, carry, inputs, constants, output_shapes, reverse, output_dtypes)


def at_least_one_token(x: Tensor, value: float = 0) -> Tensor:
    """Add one token of padding, with this value, to a batch without tokens.

    The tokens are on the second axis. An unknown size is not changed while a model is exported.
    """
    tokens, rest = tuple(x.shape[1:2]), [[0, 0]] * (len(x.shape) - 2)
    if tokens == (None,) and not is_exporting():  # in a graph of TensorFlow
        import tensorflow as tf

        more = [[0, 0], [0, tf.maximum(1 - tf.shape(x)[1], 0)], *rest]
        return tf.ensure_shape(tf.pad(x, more, constant_values=tf.cast(value, x.dtype)), x.shape)
    if tokens == (0,):
        return ops.pad(x, [[0, 0], [0, 1], *rest], constant_values=ops.cast(value, x.dtype))
    return x


def _torch_scan(
    step: Callable, carry: tuple, inputs: tuple, constants: tuple, reverse: bool
) -> tuple[tuple, tuple]:
    import torch

    n = inputs[0].shape[0]
    outputs: list[Any] = [None] * n
    for t in reversed(range(n)) if reverse else range(n):
        carry, outputs[t] = step(constants, carry, _time_step(inputs, t))
    return carry, tuple(torch.stack(steps) for steps in zip(*outputs))


def _tensorflow_scan(
    step: Callable,
    carry: tuple,
    inputs: tuple,
    constants: tuple,
    output_shapes: Sequence[tuple],
    reverse: bool,
    output_dtypes: Sequence,
) -> tuple[tuple, tuple]:
    import tensorflow as tf

    n = tf.shape(inputs[0])[0]
    arrays = tuple(
        tf.TensorArray(dtype, n, element_shape=shape)
        for dtype, shape in zip(output_dtypes, output_shapes, strict=True)
    )
    # tf2onnx expects that the first write goes to index 0, so reverse the outputs afterwards.
    flip = reverse and is_exporting()

    def body(k: Tensor, carry: tuple, arrays: tuple) -> tuple:
        t = n - 1 - k if reverse else k
        carry, outputs = step(constants, carry, _time_step(inputs, t))
        index = k if flip else t
        return k + 1, carry, tuple(a.write(index, x) for a, x in zip(arrays, outputs))

    _, carry, arrays = tf.while_loop(
        lambda k, *_: k < n,
        body,
        (0, carry, arrays),
        parallel_iterations=1,
        maximum_iterations=n,  # XLA needs a bound for the gradient.
    )
    outputs = tuple(array.stack() for array in arrays)
    return carry, tuple(tf.reverse(x, [0]) for x in outputs) if flip else outputs


def _time_step(inputs: tuple, t: Any) -> tuple:
    return tuple(None if x is None else x[t] for x in inputs)


@functools.cache
def _jax_scan() -> Callable:
    """Return one compiled function for all scans.

    Outside of ``jax.jit``, ``jax.lax.scan`` would compile at every call.
    """
    import jax

    def run(step: Callable, reverse: bool, constants: tuple, carry: tuple, inputs: tuple) -> Any:
        return jax.lax.scan(functools.partial(step, constants), carry, inputs, reverse=reverse)

    return jax.jit(run, static_argnums=(0, 1))
