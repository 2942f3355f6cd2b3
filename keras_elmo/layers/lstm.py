"""The LSTM with a projection of its output, and clips on both (Sak et al., 2014)."""

import keras
import numpy as np
from keras import ops

from keras_elmo.layers.brick import Brick
from keras_elmo.layers.time_steps import scan


@keras.saving.register_keras_serializable(package="keras_elmo")
class ProjectedLSTMCell(Brick):
    """One step of an LSTM whose output is projected before it recurs.

    With the step's share of the input ``z = x W + b + forget bias``, which
    ``ProjectedLSTM`` computes for all steps at once, and the gates in Keras order::

        i, f, c~, o = split(z + h U)
        c = clip(sigmoid(f) * c + sigmoid(i) * tanh(c~), cell_clip)
        h = clip((sigmoid(o) * tanh(c)) P, projection_clip)

    The clipped values are what the next step sees.

    Args:
        lstm_dim: Features of the cell state.
        projection_dim: Features of the output. Equal to ``lstm_dim`` there is no
            projection, and ``projection_clip`` has no effect.
        cell_clip: Bound on the absolute cell state, or None.
        projection_clip: Bound on the absolute projected output, or None.
        **kwargs: Passed on to ``Brick``.

    Call arguments:
        inputs: ``z``, float, shape ``(batch, 4 * lstm_dim)``.
        states: ``[h, c]``, float, shapes ``(batch, projection_dim)`` and
            ``(batch, lstm_dim)``.

    Returns:
        The output ``h`` and the new states ``[h, c]``.

    Example:

    >>> cell = ProjectedLSTMCell(lstm_dim=5, projection_dim=3)
    >>> output, (h, c) = cell(keras.ops.ones((2, 20)), cell.get_initial_state(2))
    >>> keras.ops.shape(output), keras.ops.shape(c)
    ((2, 3), (2, 5))

    Reference:
        Sak et al., 2014, https://arxiv.org/abs/1402.1128
    """

    def __init__(self, lstm_dim, projection_dim, cell_clip=None, projection_clip=None, **kwargs):
        super().__init__(**kwargs)
        self.lstm_dim = lstm_dim
        self.projection_dim = projection_dim
        self.cell_clip = cell_clip
        self.projection_clip = projection_clip
        self.state_size = [projection_dim, lstm_dim]
        self.output_size = projection_dim

    def build(self, input_shape):
        self.recurrent_kernel = self.add_weight(
            shape=(self.projection_dim, 4 * self.lstm_dim), name="recurrent_kernel"
        )
        self.has_projection = self.projection_dim != self.lstm_dim
        if self.has_projection:
            self.projection = self.add_weight(
                shape=(self.lstm_dim, self.projection_dim), name="projection"
            )

    def call(self, inputs, states):
        h, c = states
        i, f, candidate, o = ops.split(inputs + ops.matmul(h, self.recurrent_kernel), 4, axis=-1)
        c = ops.sigmoid(f) * c + ops.sigmoid(i) * ops.tanh(candidate)
        if self.cell_clip is not None:
            c = ops.clip(c, -self.cell_clip, self.cell_clip)
        h = ops.sigmoid(o) * ops.tanh(c)
        if self.has_projection:
            h = ops.matmul(h, self.projection)
            if self.projection_clip is not None:
                h = ops.clip(h, -self.projection_clip, self.projection_clip)
        return h, [h, c]

    def get_initial_state(self, batch_size=None):
        return [ops.zeros((batch_size, size), dtype=self.compute_dtype) for size in self.state_size]

    def get_config(self):
        return {
            **super().get_config(),
            "lstm_dim": self.lstm_dim,
            "projection_dim": self.projection_dim,
            "cell_clip": self.cell_clip,
            "projection_clip": self.projection_clip,
        }


@keras.saving.register_keras_serializable(package="keras_elmo")
class ProjectedLSTM(Brick):
    """Run a ``ProjectedLSTMCell`` over sentences, forward or backward.

    Args:
        lstm_dim, projection_dim, cell_clip, projection_clip: See ``ProjectedLSTMCell``.
        go_backwards: Read every sentence from its last token to its first. The
            output stays in the order of the input, unlike that of Keras's own RNNs.
        **kwargs: Passed on to ``Brick``.

    Call arguments:
        inputs: Float, shape ``(batch, tokens, features)``.
        mask: Bool, shape ``(batch, tokens)``, True for tokens, padding on the
            right; or None.
        initial_state: ``[h, c]`` to start from; zeros if None.

    Returns:
        The outputs, float, shape ``(batch, tokens, projection_dim)``, and the final
        ``[h, c]``, shapes ``(batch, projection_dim)`` and ``(batch, lstm_dim)``.

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
        self.cell = ProjectedLSTMCell(
            self.lstm_dim,
            self.projection_dim,
            self.cell_clip,
            self.projection_clip,
            name="cell",
            **self.inner,
        )
        self.cell.build((input_shape[0], gates))

    def full_bias(self):
        """Return the bias of the gates, with the 1 of the forget gate that files leave out."""
        forget_bias = np.repeat([0, 1, 0, 0], self.lstm_dim).astype("float32")
        return self.bias + ops.cast(forget_bias, self.compute_dtype)

    def call(self, inputs, mask=None, initial_state=None):
        # Time goes first while the features are few: the gates are many times wider.
        inputs = ops.transpose(inputs, (1, 0, 2))
        gates = ops.matmul(inputs, self.kernel) + self.full_bias()
        state = tuple(initial_state or self.cell.get_initial_state(ops.shape(inputs)[1]))

        def step(state, slices):
            h, new = self.cell(slices[0], state)
            if mask is not None:
                is_token = slices[1]
                new = [ops.where(is_token, x, before) for x, before in zip(new, state)]
                h = ops.where(is_token, h, ops.zeros_like(h))
            return tuple(new), (h,)

        slices = (gates,)
        if mask is not None:
            slices += (ops.transpose(ops.cast(mask, "bool"))[..., None],)
        state, (outputs,) = scan(
            step, state, slices, [(None, self.projection_dim)], reverse=self.go_backwards
        )
        return ops.transpose(outputs, (1, 0, 2)), list(state)

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
