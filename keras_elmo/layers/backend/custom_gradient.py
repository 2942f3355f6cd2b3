"""Call a function with a hand-written gradient, on every backend."""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_elmo.utils.typing import Tensor


def call_with_gradient(
    forward: Callable,
    backward: Callable,
    options: tuple,
    tensors: tuple,
    weights: tuple,
    differentiable: bool = True,
) -> tuple:
    """Return the outputs of ``forward``, whose gradient ``backward`` computes.

    Residuals are the tensors that the forward pass stores for the gradient. Unlike
    ``keras.ops.custom_gradient`` this supports several outputs on PyTorch, and computes the
    residuals only if they are needed.

    Define both functions at the top level of a module, and pass all tensors as arguments.
    A closure would be compiled again at every eager call.

    Args:
        forward: function. Takes a bool, whether to compute the residuals, then the options, and
            all tensors and weights. Returns the tuple of outputs and the tuple of residuals.
        backward: function. Takes the options, the residuals and the gradients of the outputs.
            Returns the gradient of every tensor and weight; None if it has no gradient.
        options: tuple of functions, numbers, strings and None.
        tensors: tuple of tensors and None. From call to call, the sizes of all axes but the
            last may change.
        weights: tuple of tensors and None. Their shapes are fixed.
        differentiable: bool. False if nobody needs a gradient, as for frozen weights. TensorFlow
            never frees a function with a written-out gradient in a graph.

    Returns:
        The outputs. They have no second derivative.
    """
    backend = keras.backend.backend()
    arguments = tuple(None if x is None else ops.convert_to_tensor(x) for x in (*tensors, *weights))
    if backend == "jax":
        return _jax_function(forward, backward)(options, *arguments)
    if backend == "torch":
        import torch

        needs_gradient = any(x is not None and x.requires_grad for x in arguments)
        if torch.is_grad_enabled() and needs_gradient:
            return _torch_function(forward, backward).apply(options, *arguments)
        return forward(False, options, *arguments)[0]
    import tensorflow as tf

    # TensorFlow would treat a variable as a hidden argument with its own gradient.
    given = [tf.convert_to_tensor(x) for x in arguments if x is not None]
    signature = tuple(
        None
        if x is None
        else tf.TensorSpec(_general_shape(x) if i < len(tensors) else x.shape, x.dtype)
        for i, x in enumerate(arguments)
    )
    settings = (options, signature, differentiable, tf.executing_eagerly())
    return _tensorflow_function(forward, backward, *settings)(*given)


def _general_shape(x: Tensor) -> list:
    """Return the shape of a tensor, with None for all sizes that differ from call to call."""
    return [*[None] * (len(x.shape) - 1), x.shape[-1]]


@functools.cache
def _jax_function(forward: Callable, backward: Callable) -> Callable:
    import jax

    function = jax.custom_vjp(lambda *x: forward(False, *x)[0], nondiff_argnums=(0,))
    function.defvjp(functools.partial(forward, True), backward)
    return jax.jit(function, static_argnums=(0,))


@functools.cache
def _torch_function(forward_function: Callable, backward_function: Callable) -> Any:
    import torch

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, options: tuple, *arguments: Any) -> tuple:
            outputs, residuals = forward_function(True, options, *arguments)
            ctx.options = options
            ctx.save_for_backward(*residuals)
            return outputs

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *upstream: Tensor) -> tuple:
            return None, *backward_function(ctx.options, ctx.saved_tensors, upstream)

    return Function


@functools.cache
def _tensorflow_function(
    forward: Callable,
    backward: Callable,
    options: tuple,
    signature: tuple,
    differentiable: bool,
    eager: bool,
) -> Callable:
    """Return a function of the tensors that are not None.

    Eager calls run a graph, because a graph skips residuals that no gradient needs. The signature
    lets one graph serve all batch sizes and lengths.
    """
    import tensorflow as tf

    is_given = [spec is not None for spec in signature]

    def function(*tensors: Tensor) -> tuple:
        remaining = iter(tensors)
        arguments = (next(remaining) if given else None for given in is_given)
        outputs, residuals = forward(differentiable, options, *arguments)
        if not differentiable:
            return outputs

        def gradient(*upstream: Tensor) -> list:
            upstream = tuple(ops.convert_to_tensor(x) for x in upstream)
            gradients = backward(options, residuals, upstream)
            return [x for x, given in zip(gradients, is_given, strict=True) if given]

        return outputs, gradient

    if differentiable:
        function = tf.custom_gradient(function)
    if not eager:
        return function
    specs = [spec for spec in signature if spec is not None]
    # TensorFlow counts the traces of functions by their code. All functions here share one code,
    # so it would warn of retracing although each is traced once. A partial avoids the warning.
    return tf.function(functools.partial(function), input_signature=specs, autograph=False)
