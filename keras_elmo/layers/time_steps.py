"""A loop over time steps that every backend runs at its own best."""

import keras


def scan(step, carry, inputs, like, reverse=False):
    """Run ``step`` over the first axis of arrays, and stack what it gives.

    Args:
        step: Function of the carried tuple and a tuple of slices, one time step of every
            input; returns the new carried tuple and a tuple of outputs.
        carry: Tuple of tensors.
        inputs: Tuple of tensors, time on the first axis.
        like: Shapes of one time step of each output, None for unknown sizes. Outputs
            have the dtype of the first carried tensor.
        reverse: Go from the last time step to the first. The outputs stay in the order of
            the inputs.

    Returns:
        The last carried tuple, and the tuple of the outputs, time on the first axis.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.lax.scan(step, carry, inputs, reverse=reverse)
    if backend == "torch":
        import torch

        n = inputs[0].shape[0]
        found = [None] * n
        for t in reversed(range(n)) if reverse else range(n):
            carry, found[t] = step(carry, tuple(x[t] for x in inputs))
        return carry, tuple(torch.stack(parts) for parts in zip(*found))
    import tensorflow as tf

    n = tf.shape(inputs[0])[0]
    outputs = tuple(tf.TensorArray(carry[0].dtype, n, element_shape=shape) for shape in like)

    def body(k, carry, outputs):
        t = n - 1 - k if reverse else k
        carry, found = step(carry, tuple(x[t] for x in inputs))
        return k + 1, carry, tuple(a.write(t, x) for a, x in zip(outputs, found))

    _, carry, outputs = tf.while_loop(
        lambda k, *_: k < n,
        body,
        (0, carry, outputs),
        parallel_iterations=1,
        maximum_iterations=n,  # XLA needs it for the gradient
    )
    return carry, tuple(array.stack() for array in outputs)
