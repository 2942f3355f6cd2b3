"""A loop over time steps, written for each backend."""

import functools
from collections.abc import Callable
from typing import Any

import keras

from keras_elmo.utils.typing import Tensor


def scan(
    step: Callable,
    carry: tuple,
    inputs: tuple,
    constants: tuple,
    outputs: tuple,
    reverse: bool = False,
) -> tuple[tuple, tuple]:
    """Run ``step`` over the first axis of the inputs.

    Args:
        step: function. Takes the constants, the carried tuple and one time step of every
            input; returns the new carried tuple and a tuple of outputs. Define it at the top
            level of a module, and pass all tensors as arguments. JAX would compile a closure
            again at every eager call.
        carry: tuple of tensors. The values that the first step receives.
        inputs: tuple. Tensors with time on the first axis, outputs of another scan, and None. The
            first must be a tensor. An input of None stays None in every step.
        constants: tuple of tensors, numbers and None. Shared by all steps.
        outputs: tuple of pairs, one for each output: its dtype and the size of its last axis. The
            first input gives the sizes of the other axes. TensorFlow's ``TensorArray`` needs these
            sizes; LiteRT also needs the batch size, if it is known.
        reverse: bool. Run from the last time step to the first. The outputs keep the order of
            the inputs. The export to ONNX cannot convert such a loop.

    Returns:
        The last carried tuple, and the tuple of outputs. On TensorFlow an output is a
        ``TensorArray``, so that another scan can read its steps without two copies; ``stack_steps``
        makes a tensor of it, with time on the first axis.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        return _jax_scan()(step, reverse, constants, carry, inputs)
    if backend == "torch":
        import torch

        n = inputs[0].shape[0]
        steps = list(zip(*([None] * n if x is None else x.unbind() for x in inputs)))
        found: list[Any] = [None] * n
        for t in reversed(range(n)) if reverse else range(n):
            carry, found[t] = step(constants, carry, steps[t])
        return carry, tuple(map(torch.stack, zip(*found)))
    import tensorflow as tf

    n = tf.shape(inputs[0])[0]
    arrays = tuple(
        tf.TensorArray(dtype, n, element_shape=(*inputs[0].shape[1:-1], size))
        for dtype, size in outputs
    )
    # The gradient of x[t] would have the size of x in every step.
    arrays_in = [tf.TensorArray(x.dtype, n).unstack(x) if tf.is_tensor(x) else x for x in inputs]

    def body(k: Tensor, carry: tuple, arrays: tuple) -> tuple:
        t = n - 1 - k if reverse else k
        one_step = tuple(None if x is None else x.read(t) for x in arrays_in)
        carry, found = step(constants, carry, one_step)
        return k + 1, carry, tuple(a.write(t, x) for a, x in zip(arrays, found))

    _, carry, arrays = tf.while_loop(
        lambda k, *_: k < n,
        body,
        (0, carry, arrays),
        parallel_iterations=1,
        maximum_iterations=n,  # XLA needs a bound for the gradient.
    )
    return carry, arrays


def stack_steps(steps: Any) -> Tensor:
    """Return an output of a scan as a tensor, time on the first axis."""
    return steps.stack() if keras.backend.backend() == "tensorflow" else steps


@functools.cache
def _jax_scan() -> Callable:
    """Return one compiled function for all scans.

    Outside of ``jax.jit``, ``jax.lax.scan`` would compile at every call.
    """
    import jax

    def run(step: Callable, reverse: bool, constants: tuple, carry: tuple, inputs: tuple) -> Any:
        return jax.lax.scan(functools.partial(step, constants), carry, inputs, reverse=reverse)

    return jax.jit(run, static_argnums=(0, 1))
