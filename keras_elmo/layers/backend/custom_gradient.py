"""Functions whose gradient is written out, on every backend."""

import functools

import keras
from keras import ops


def call_with_gradient(run, record, differentiate, options, tensors):
    """Call ``run``, or ``record`` where a gradient may be asked for.

    Unlike ``keras.ops.custom_gradient`` it takes any number of outputs on PyTorch, and what
    only the gradient needs is not computed without one. All three are functions of a module
    that take all tensors from their arguments, so that eager calls are compiled once.

    Args:
        run: Function of the options and the tensors; returns a tuple of tensors.
        record: The same; returns the outputs, and a tuple of tensors that the gradient needs.
        differentiate: Function of the options, that tuple and the gradient of every output;
            returns a gradient for every tensor, None for those that have none.
        options: Tuple of numbers, strings and None.
        tensors: Tuple of tensors and None.

    Returns:
        The outputs. They have no second derivative.
    """
    functions = (run, record, differentiate)
    backend = keras.backend.backend()
    if backend == "jax":
        return _jax_function(*functions)(options, *tensors)
    if backend == "torch":
        import torch

        if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
            return _torch_function(*functions).apply(options, *tensors)
        return run(options, *tensors)
    import tensorflow as tf

    is_there = tuple(x is not None for x in tensors)
    # A variable would look like one more, hidden argument to TensorFlow.
    given = [tf.convert_to_tensor(x) for x in tensors if x is not None]
    # One function for each width: TensorFlow forgets sizes that differ from call to call.
    widths = tuple(x.shape[-1] for x in given)
    eager = tf.executing_eagerly()
    return _tensorflow_function(*functions, options, is_there, widths, eager)(*given)


@functools.cache
def _jax_function(run, record, differentiate):
    import jax

    function = jax.custom_vjp(run, nondiff_argnums=(0,))
    function.defvjp(record, differentiate)
    return jax.jit(function, static_argnums=(0,))


@functools.cache
def _torch_function(run, record, differentiate):
    import torch

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, options, *tensors):
            outputs, kept = record(options, *tensors)
            ctx.options = options
            ctx.save_for_backward(*kept)
            return outputs

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, *upstream):
            return None, *differentiate(ctx.options, ctx.saved_tensors, upstream)

    return Function


@functools.cache
def _tensorflow_function(run, record, differentiate, options, is_there, widths, eager):
    """The function of the tensors that are there.

    Eager calls go through a graph, which leaves out what only the gradient needs.
    """
    import tensorflow as tf

    @tf.custom_gradient
    def function(*given):
        given = iter(given)
        outputs, kept = record(options, *(next(given) if there else None for there in is_there))

        def gradient(*upstream):
            upstream = tuple(ops.convert_to_tensor(x) for x in upstream)
            gradients = differentiate(options, kept, upstream)
            return [x for x, there in zip(gradients, is_there, strict=True) if there]

        return outputs, gradient

    return tf.function(function, autograph=False, reduce_retracing=True) if eager else function
