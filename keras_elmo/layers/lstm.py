"""The LSTM with a projection of its output, and clips on both (Sak et al., 2014)."""

import keras
import numpy as np
from keras import ops

from keras_elmo.layers.backend.custom_gradient import call_with_gradient
from keras_elmo.layers.backend.half_precision import affine, matmul
from keras_elmo.layers.backend.scan import scan
from keras_elmo.layers.freezable_layer import FreezableLayer


def projected_lstm(
    gates,
    recurrent_kernel,
    projection=None,
    cell_clip=None,
    projection_clip=None,
    mask=None,
    state=None,
    reverse=False,
    product_dtype=None,
):
    """Run an LSTM whose output is projected before it recurs.

    With the inputs' share of the gates, ``z = x W + b``, and the gates in Keras order::

        i, f, c~, o = split(z + h U)
        c = clip(sigmoid(f) * c + sigmoid(i) * tanh(c~), cell_clip)
        h = clip((sigmoid(o) * tanh(c)) P, projection_clip)

    The clipped values are what the next step sees.

    Automatic differentiation adds up the gradients of the weights step by step. Here the
    backward loop only carries the errors back, and one matrix product over all steps gives
    the gradient of each weight; on TensorFlow a training step of the LSTMs took 0.55 of the
    time that it took through ``keras.layers.RNN``. There is no second derivative.

    Args:
        gates: ``z``, float, shape ``(tokens, batch, 4 * lstm_dim)``. Its dtype is that of what
            the gradient keeps of the gates, the dtype of the weights that of the states.
        recurrent_kernel: ``U``, float, shape ``(projection_dim, 4 * lstm_dim)``.
        projection: ``P``, float, shape ``(lstm_dim, projection_dim)``. None if the two are
            equal and there is none; then ``projection_clip`` has no effect.
        cell_clip: Bound on the absolute cell state, or None.
        projection_clip: Bound on the absolute projected output, or None.
        mask: Bool, shape ``(tokens, batch)``, True for tokens; or None. Padding leaves the
            state as it is, and its output is 0.
        state: ``(h, c)`` to start from, float, shapes ``(batch, projection_dim)`` and
            ``(batch, lstm_dim)``; zeros if None.
        reverse: Read from the last token to the first. The outputs stay in the order of
            the inputs.
        product_dtype: Of the matrix products, if not that of ``gates``.

    Returns:
        The outputs, float, shape ``(tokens, batch, projection_dim)``, and the final
        ``(h, c)``. Gradients pass through all three, to ``gates``, the weights and ``state``.

    Example:

    >>> gates = keras.ops.ones((7, 2, 20))
    >>> outputs, (h, c) = projected_lstm(gates, keras.ops.ones((3, 20)), keras.ops.ones((5, 3)))
    >>> keras.ops.shape(outputs), keras.ops.shape(c)
    ((7, 2, 3), (2, 5))

    Reference:
        Sak et al., 2014, https://arxiv.org/abs/1402.1128
    """
    projection_dim, size = recurrent_kernel.shape
    if state is None:
        batch = ops.shape(gates)[1]
        state = [ops.zeros((batch, n), recurrent_kernel.dtype) for n in (projection_dim, size // 4)]
    if mask is not None:
        mask = ops.cast(mask, "bool")[..., None]
    if projection is None:
        projection_clip = None
    options = (cell_clip, projection_clip, reverse, product_dtype)
    tensors = (gates, *state, recurrent_kernel, projection, mask)
    outputs, h, c = call_with_gradient(_run, _record, _differentiate, options, tensors)
    return outputs, (h, c)


def _run(options, gates, h, c, kernel, projection, mask):
    cell_clip, projection_clip, reverse, product_dtype = options
    constants = (*_cast(product_dtype, kernel, projection), cell_clip, projection_clip)
    shapes = [(gates.shape[1], kernel.shape[0])]
    (h, c), (outputs,) = scan(_step, (h, c), (gates, mask), constants, shapes, reverse)
    return _without_padding(outputs, mask), h, c


def _record(options, gates, h, c, kernel, projection, mask):
    """As ``_run``; keep the states behind every step, and the activations of the gates."""
    cell_clip, projection_clip, reverse, product_dtype = options
    constants = (*_cast(product_dtype, kernel, projection), cell_clip, projection_clip)
    start = (h, c)
    rows, size = gates.shape[1], kernel.shape[1]  # LiteRT needs the rows where they are known
    shapes = [(rows, n) for n in (kernel.shape[0], size // 4, size)]
    dtypes = [h.dtype, c.dtype, gates.dtype]
    (h, c), kept = scan(_step_with_record, start, (gates, mask), constants, shapes, reverse, dtypes)
    outputs = _without_padding(kept[0], mask)
    return (outputs, h, c), (*start, *kept, kernel, projection, mask)


def _differentiate(options, kept, upstream):
    cell_clip, projection_clip, reverse, product_dtype = options
    *start, h, c, activations, kernel, projection, mask = kept
    h_before, c_before = (_shifted(x, first, reverse) for x, first in zip((h, c), start))
    back = [
        None if weight is None else ops.transpose(weight)
        for weight in _cast(product_dtype, kernel, projection)
    ]
    d_outputs, *d_state = upstream
    d_state, (d_gates, d_h) = scan(
        _step_back,
        tuple(d_state),
        (_without_padding(d_outputs, mask), h, c, c_before, activations, mask),
        (*back, cell_clip, projection_clip),
        [(None, kernel.shape[1]), (None, kernel.shape[0])],
        not reverse,
        [activations.dtype, h.dtype],
    )
    d_kernel, d_projection = _outer(h_before, d_gates, product_dtype), None
    if projection is not None:
        m = ops.cast(activations[..., -c.shape[-1] :], c.dtype) * ops.tanh(c)
        d_projection = _outer(m, d_h, product_dtype)
    return d_gates, *d_state, d_kernel, d_projection, None


def _step(constants, carry, slices):
    state, _ = _step_with_record(constants, carry, slices)
    return state, state[:1]


def _step_with_record(constants, carry, slices):
    kernel, projection, cell_clip, projection_clip = constants
    gates, is_token = slices
    h, c = carry
    dtype = gates.dtype
    gates = ops.cast(gates, h.dtype) + matmul(h, kernel, kernel.dtype)
    i, f, candidate, o = ops.split(gates, 4, axis=-1)
    i, f, candidate, o = ops.sigmoid(i), ops.sigmoid(f), ops.tanh(candidate), ops.sigmoid(o)
    c = _clip(f * c + i * candidate, cell_clip)
    h = o * ops.tanh(c)
    if projection is not None:
        h = _clip(matmul(h, projection, projection.dtype), projection_clip)
    h, c = _where(is_token, (h, c), carry)
    activations = [ops.cast(x, dtype) for x in (i, f, candidate, o)]
    return (h, c), (h, c, ops.concatenate(activations, axis=-1))


def _step_back(constants, carry, slices):
    kernel, projection, cell_clip, projection_clip = constants
    upstream, h, c, c_before, activations, is_token = slices
    dtype = activations.dtype
    i, f, candidate, o = (ops.cast(x, c.dtype) for x in ops.split(activations, 4, axis=-1))
    d_h, d_c = carry if is_token is None else (ops.where(is_token, x, 0) for x in carry)
    d_h = _inside(d_h + upstream, h, projection_clip)
    d_m = d_h if projection is None else matmul(d_h, projection, projection.dtype)
    m = ops.tanh(c)
    d_c = _inside(d_c + d_m * o * (1 - m * m), c, cell_clip)
    d_gates = [
        d_c * candidate * i * (1 - i),
        d_c * c_before * f * (1 - f),
        d_c * i * (1 - candidate * candidate),
        d_m * m * o * (1 - o),
    ]
    d_gates = ops.concatenate([ops.cast(x, dtype) for x in d_gates], axis=-1)
    d_h_before = ops.cast(matmul(d_gates, kernel, kernel.dtype), h.dtype)
    return _where(is_token, (d_h_before, d_c * f), carry), (d_gates, d_h)


def _cast(dtype, *weights):
    """Cast the weights of the products of a step, once for all steps."""
    return [w if w is None or dtype is None else ops.cast(w, dtype) for w in weights]


def _where(is_token, new, old):
    if is_token is None:
        return new
    return tuple(ops.where(is_token, x, y) for x, y in zip(new, old))


def _without_padding(x, mask):
    return x if mask is None else ops.where(mask, x, ops.zeros_like(x))


def _shifted(states, first, reverse):
    """Return the states in front of every step, from those behind it."""
    if reverse:
        return ops.concatenate([states[1:], first[None]])
    return ops.concatenate([first[None], states[:-1]])


def _clip(x, bound):
    return x if bound is None else ops.clip(x, -bound, bound)


def _inside(gradient, x, bound):
    """Stop the gradient where ``x`` was clipped."""
    if bound is None:
        return gradient
    return ops.where(ops.abs(x) < ops.cast(bound, x.dtype), gradient, ops.zeros_like(gradient))


def _outer(x, y, product_dtype):
    """Return the sum over tokens and batch of the outer products."""
    if keras.backend.backend() == "jax":
        # Devices may share the batch: in one axis with the tokens they would gather it.
        dtype = product_dtype or x.dtype
        product = ops.tensordot(ops.cast(x, dtype), ops.cast(y, dtype), axes=((0, 1), (0, 1)))
        return ops.cast(product, x.dtype)
    x, y = (ops.reshape(a, (-1, a.shape[-1])) for a in (x, y))
    return matmul(ops.transpose(x), y, product_dtype)


@keras.saving.register_keras_serializable(package="keras_elmo")
class ProjectedLSTM(FreezableLayer):
    """Run ``projected_lstm`` over sentences, forward or backward.

    The gates are ``x kernel + bias``, with 1 added to the bias of the forget gate, which
    files leave out.

    Args:
        lstm_dim: Features of the cell state.
        projection_dim: Features of the output. Equal to ``lstm_dim`` there is no
            projection, and ``projection_clip`` has no effect.
        cell_clip: Bound on the absolute cell state, or None.
        projection_clip: Bound on the absolute projected output, or None.
        go_backwards: Read every sentence from its last token to its first. The
            output stays in the order of the input, unlike that of Keras's own RNNs.
        **kwargs: Passed on to ``FreezableLayer``.

    Call arguments:
        inputs: Float, shape ``(batch, tokens, features)``.
        mask: Bool, shape ``(batch, tokens)``, True for tokens, padding on the
            right; or None.
        initial_state: ``[h, c]`` to start from; zeros if None.

    Returns:
        The outputs, float, shape ``(batch, tokens, projection_dim)``, and the final
        ``[h, c]``, shapes ``(batch, projection_dim)`` and ``(batch, lstm_dim)``.
        Gradients pass through the state too, in and out; there is no second derivative.

    Masking: padded tokens leave the state as it is; their output is 0.

    Example:

    >>> lstm = ProjectedLSTM(lstm_dim=5, projection_dim=3, go_backwards=True)
    >>> outputs, (h, c) = lstm(keras.ops.ones((2, 7, 4)))
    >>> keras.ops.shape(outputs)
    (2, 7, 3)

    Reference:
        Sak et al., 2014, https://arxiv.org/abs/1402.1128
    """

    def __init__(
        self,
        lstm_dim,
        projection_dim,
        cell_clip=None,
        projection_clip=None,
        go_backwards=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.lstm_dim = lstm_dim
        self.projection_dim = projection_dim
        self.cell_clip = cell_clip
        self.projection_clip = projection_clip
        self.go_backwards = go_backwards
        self.supports_masking = True

    def build(self, input_shape):
        gates = 4 * self.lstm_dim
        self.kernel = self.add_weight(shape=(input_shape[-1], gates), name="kernel")
        self.bias = self.add_weight(shape=(gates,), initializer="zeros", name="bias")
        self.recurrent_kernel = self.add_weight(
            shape=(self.projection_dim, gates), name="recurrent_kernel"
        )
        self.projection = None
        if self.projection_dim != self.lstm_dim:
            self.projection = self.add_weight(
                shape=(self.lstm_dim, self.projection_dim), name="projection"
            )

    def call(self, inputs, mask=None, initial_state=None):
        # Time goes first while the features are few: the gates are many times wider.
        inputs = ops.transpose(inputs, (1, 0, 2))
        mask = None if mask is None else ops.transpose(mask)
        outputs, state = self.run(inputs, mask, initial_state, self.go_backwards)
        return ops.transpose(outputs, (1, 0, 2)), list(state)

    def run(self, inputs, mask=None, state=None, reverse=False, product_dtype=None):
        """Do what the layer does, time first.

        Args:
            inputs: Float, shape ``(tokens, batch, features)``.
            mask: As for ``projected_lstm``.
            state: As for ``projected_lstm``.
            reverse: As for ``projected_lstm``; ``go_backwards`` does not count here.
            product_dtype: As for ``projected_lstm``; it holds for the product with
                ``kernel`` too.

        Returns:
            What ``projected_lstm`` returns.
        """
        kernel, bias, recurrent_kernel, projection = self.in_compute_dtype(
            self.kernel, self.bias, self.recurrent_kernel, self.projection
        )
        # What is as wide as the gates stays in the dtype of the products.
        inputs = ops.cast(inputs, product_dtype or self.compute_dtype)
        forget_bias = np.repeat([0, 1, 0, 0], self.lstm_dim).astype("float32")
        bias = bias + ops.cast(forget_bias, self.compute_dtype)
        kernel, bias = (ops.cast(x, inputs.dtype) for x in (kernel, bias))
        return projected_lstm(
            affine(inputs, kernel, bias),
            recurrent_kernel,
            projection,
            self.cell_clip,
            self.projection_clip,
            mask,
            state and [ops.cast(x, self.compute_dtype) for x in state],
            reverse,
            product_dtype,
        )

    def compute_mask(self, inputs, mask=None):
        return mask, [None, None]

    def compute_output_shape(self, input_shape):
        batch = input_shape[0]
        state = [(batch, self.projection_dim), (batch, self.lstm_dim)]
        return (*input_shape[:-1], self.projection_dim), state

    def get_config(self):
        return {
            **super().get_config(),
            "lstm_dim": self.lstm_dim,
            "projection_dim": self.projection_dim,
            "cell_clip": self.cell_clip,
            "projection_clip": self.projection_clip,
            "go_backwards": self.go_backwards,
        }
