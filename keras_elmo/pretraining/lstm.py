"""The LSTM with projection over whole sentences, its gradient written out."""

from keras import ops

from keras_elmo.layers.time_steps import scan
from keras_elmo.pretraining.model.products import matmul


def projected_lstm(
    gates, recurrent_kernel, projection, cell_clip, projection_clip, product_dtype="float32"
):
    """Run the LSTM of ``ProjectedLSTMCell`` from a zero state, without a mask.

    Automatic differentiation adds up the gradients of the weights step by step. Here the
    backward loop only carries the errors back, and one matrix product over all steps gives
    the gradient of each weight; on TensorFlow a training step of the LSTMs took 0.55 of the
    time that it took through ``keras.layers.RNN``.

    Args:
        gates: The inputs' share of the gates, bias included, float, shape ``(tokens, batch,
            4 * lstm_dim)``, in the order i, f, c, o.
        recurrent_kernel: Float, shape ``(projection_dim, 4 * lstm_dim)``.
        projection: Float, shape ``(lstm_dim, projection_dim)``; None if there is none.
        cell_clip: Bound on the absolute cell state, or None.
        projection_clip: Bound on the absolute projected output, or None.
        product_dtype: Of the products over all steps; those of one step are float32.

    Returns:
        The outputs, float, shape ``(tokens, batch, projection_dim)``.

    Reference:
        Sak et al., 2014, https://arxiv.org/abs/1402.1128
    """
    weights = (recurrent_kernel,) if projection is None else (recurrent_kernel, projection)
    # A variable would look like one more, hidden argument to TensorFlow.
    weights = tuple(ops.copy(weight) for weight in weights)
    if projection is None:
        projection_clip = None
    projection_dim, size = (int(n) for n in recurrent_kernel.shape)
    lstm_dim = size // 4

    def forward(gates, kernel, projection=None):
        batch = ops.shape(gates)[1]
        zeros = tuple(ops.zeros((batch, n), gates.dtype) for n in (projection_dim, lstm_dim))

        def step(carry, inputs):
            h, c = carry
            i, f, candidate, o = ops.split(inputs[0] + ops.matmul(h, kernel), 4, axis=-1)
            i, f, o = ops.sigmoid(i), ops.sigmoid(f), ops.sigmoid(o)
            candidate = ops.tanh(candidate)
            c = _clip(f * c + i * candidate, cell_clip)
            h = o * ops.tanh(c)
            if projection is not None:
                h = _clip(ops.matmul(h, projection), projection_clip)
            return (h, c), (h, c, ops.concatenate([i, f, candidate, o], axis=-1))

        sizes = (projection_dim, lstm_dim, 4 * lstm_dim)
        return scan(step, zeros, (gates,), [(None, size) for size in sizes])[1], zeros

    def differentiate(upstream, h, c, activations, zeros, kernel, projection=None):
        back = [ops.transpose(weight) for weight in (kernel, projection) if weight is not None]
        before = [ops.concatenate([z[None], x[:-1]]) for z, x in zip(zeros, (h, c))]

        def step(carry, inputs):
            dh, dc = carry
            upstream, h, c, c_before, activations = inputs
            dh = _inside(dh + upstream, h, projection_clip)
            dm = dh if projection is None else ops.matmul(dh, back[1])
            i, f, candidate, o = ops.split(activations, 4, axis=-1)
            m = ops.tanh(c)
            dc = _inside(dc + dm * o * (1 - m * m), c, cell_clip)
            dgates = ops.concatenate(
                [
                    dc * candidate * i * (1 - i),
                    dc * c_before * f * (1 - f),
                    dc * i * (1 - candidate * candidate),
                    dm * m * o * (1 - o),
                ],
                axis=-1,
            )
            return (ops.matmul(dgates, back[0]), dc * f), (dgates, dh)

        _, (dgates, dh) = scan(
            step,
            zeros,
            (upstream, h, c, before[1], activations),
            [(None, 4 * lstm_dim), (None, projection_dim)],
            reverse=True,
        )
        gradients = [dgates, _outer(before[0], dgates, product_dtype)]
        if projection is not None:
            m = activations[..., 3 * lstm_dim :] * ops.tanh(c)
            gradients.append(_outer(m, dh, product_dtype))
        return tuple(gradients)

    @ops.custom_gradient
    def run(gates, *weights):
        (h, c, activations), zeros = forward(gates, *weights)

        def gradient(*args, upstream=None):
            if upstream is None:
                (upstream,) = args
            return differentiate(upstream, h, c, activations, zeros, *weights)

        return h, gradient

    return run(gates, *weights)


def _clip(x, bound):
    return x if bound is None else ops.clip(x, -bound, bound)


def _inside(gradient, x, bound):
    """Stop the gradient where ``x`` was clipped."""
    return gradient if bound is None else ops.where(ops.abs(x) < bound, gradient, 0.0)


def _outer(x, y, product_dtype):
    """Return the sum over tokens and batch of the outer products."""
    x, y = (ops.reshape(a, (-1, a.shape[-1])) for a in (x, y))
    return matmul(ops.transpose(x), y, product_dtype)
