"""A loop over time steps that every backend runs at its own best."""

import functools

import keras

from keras_elmo.layers.backend.tracing import is_for_a_converter


def scan(step, carry, inputs, constants, output_shapes, reverse=False, output_dtypes=None):
    """Run ``step`` over the first axis of arrays, and stack what it gives.

    Args:
        step: Function of the constants, the carried tuple and a tuple of slices, one time
            step of every input; returns the new carried tuple and a tuple of outputs. Make
            it a function of a module, that takes all tensors from its arguments: JAX
            compiles eager calls once for every step, and a new function is a new step.
        carry: Tuple of tensors.
        inputs: Tuple of tensors, time on the first axis, the first of them no None; slices of
            None are None.
        constants: Tuple of what all time steps share: tensors, numbers, None.
        output_shapes: Shapes of one time step of each output, None for unknown sizes.
        reverse: Go from the last time step to the first. The outputs stay in the order of
            the inputs.
        output_dtypes: Their dtypes; None for that of the first carried tensor.

    Returns:
        The last carried tuple, and the tuple of the outputs, time on the first axis.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        return _jax_scan()(step, reverse, constants, carry, inputs)
    if backend == "torch":
        import torch

        n = inputs[0].shape[0]
        outputs = [None] * n
        for t in reversed(range(n)) if reverse else range(n):
            carry, outputs[t] = step(constants, carry, _slices(inputs, t))
        return carry, tuple(torch.stack(parts) for parts in zip(*outputs))
    import tensorflow as tf

    n = tf.shape(inputs[0])[0]
    output_dtypes = output_dtypes or [carry[0].dtype] * len(output_shapes)
    arrays = tuple(
        tf.TensorArray(dtype, n, element_shape=shape)
        for dtype, shape in zip(output_dtypes, output_shapes, strict=True)
    )

    # tf2onnx takes for granted that what is written first stands first.
    flipped = reverse and is_for_a_converter()

    def body(k, carry, arrays):
        t = n - 1 - k if reverse else k
        carry, outputs = step(constants, carry, _slices(inputs, t))
        place = k if flipped else t
        return k + 1, carry, tuple(a.write(place, x) for a, x in zip(arrays, outputs))

    _, carry, arrays = tf.while_loop(
        lambda k, *_: k < n,
        body,
        (0, carry, arrays),
        parallel_iterations=1,
        maximum_iterations=n,  # XLA needs it for the gradient
    )
    outputs = tuple(array.stack() for array in arrays)
    return carry, tuple(tf.reverse(x, [0]) for x in outputs) if flipped else outputs


def _slices(inputs, t):
    return tuple(None if x is None else x[t] for x in inputs)


@functools.cache
def _jax_scan():
    """One compiled function for all: a scan outside of it would be compiled at every call."""
    import jax

    def run(step, reverse, constants, carry, inputs):
        return jax.lax.scan(functools.partial(step, constants), carry, inputs, reverse=reverse)

    return jax.jit(run, static_argnums=(0, 1))
