"""The task-specific collapse of the layer representations (Peters et al., 2018, eq. 1)."""

import numbers

import keras
import numpy as np
from keras import ops

from keras_elmo.presets import Preset


@keras.saving.register_keras_serializable(package="keras_elmo")
class ScalarMix(keras.layers.Layer):
    """Collapse the layer representations of a biLM into one, by a learned weighted sum.

    For layer representations ``h_0 .. h_L`` the ELMo representation of every token is
    ``gamma * sum_j softmax(scalars)_j * h_j``. ``scalars`` starts at zero and
    ``gamma`` at one, so an untrained mix is the plain average of the layers.

    Args:
        layer_norm: Normalise every layer first to mean 0 and variance 1, without scale or
            shift. ``True`` takes both, as bilm-tf does, over all features of all unmasked
            tokens of the *whole batch*: the result for a sentence then depends on the other
            sentences of its batch. ``<S>`` and ``</S>`` do not count (unless
            ``ElmoLayer(keep_boundaries=True)`` keeps them); AllenNLP counts them, and
            differs by 0.1 to 0.3. ``"token"`` takes them over the features of each token
            alone (Ba et al., 2016), so that batch-mates make no difference; it is the one
            for models that serve single sentences.
        dropout: Rate in [0, 1) on the mixed representation, in training only.
        l2: Weight of the penalty ``sum(scalars**2)``, on the scalars before the
            softmax. 1 keeps the mix near the average, 1e-3 lets the layers differ
            (sections 3.3 and 5.1 of the paper).
        **kwargs: Passed on to ``keras.layers.Layer``.

    Call arguments:
        inputs: Layer representations, float, shape ``(batch, tokens, layers, width)``;
            ``layers`` static, index 0 the token representation.
        mask: Bool, shape ``(batch, tokens)``, or None. Keras passes on the one that
            ``ElmoLayer`` gives.

    Returns:
        Mixed representation, float, shape ``(batch, tokens, width)``.

    Masking: hands the incoming mask on; padded tokens leave as zeros.

    Raises:
        ValueError: If ``layer_norm`` is none of the above, ``dropout`` or ``l2`` out of its
            range; in ``build``, if the input is not 4-D or ``layers`` is unknown.

    Example:

    >>> layers = np.random.rand(2, 7, 3, 1024)  # 2 sentences, 7 tokens, 3 layers
    >>> keras.ops.shape(ScalarMix()(layers))
    (2, 7, 1024)

    Reference:
        Peters et al., 2018, section 3.2, https://arxiv.org/abs/1802.05365; Ba et al., 2016,
        https://arxiv.org/abs/1607.06450
    """

    def __init__(self, layer_norm=False, dropout=0.0, l2=0.0, **kwargs):
        super().__init__(**kwargs)
        if not (isinstance(layer_norm, bool) or layer_norm == "token"):
            raise ValueError(
                'ScalarMix expects layer_norm to be False, True or "token". '
                f"Received: layer_norm={layer_norm!r}"
            )
        if not (isinstance(dropout, numbers.Real) and 0 <= dropout < 1):
            raise ValueError(f"ScalarMix expects dropout in [0, 1). Received: dropout={dropout!r}")
        if not (isinstance(l2, numbers.Real) and 0 <= l2 < float("inf")):
            raise ValueError(f"ScalarMix expects l2 of 0 or more. Received: l2={l2!r}")
        self.layer_norm = layer_norm
        self.dropout = dropout
        self.l2 = l2
        self.supports_masking = True
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    @classmethod
    def from_preset(cls, preset, index=0, **kwargs):
        """Build the mix that a preset holds: that of an AllenNLP archive or a TF-Hub module.

        Args:
            preset: As for ``ElmoLayer.from_preset``.
            index: Which of the mixes of an archive.
            **kwargs: Passed on to ``ScalarMix``; ``layer_norm`` is that of the archive if not
                given.

        Returns:
            A built ``ScalarMix``, with the learned ``scalars`` and ``gamma``.

        Raises:
            OSError: If a file is missing or damaged.
            ValueError: If the preset holds no such mix.
        """
        mixes = Preset(preset).read_mixes()
        if not isinstance(index, numbers.Integral) or index not in range(len(mixes)):
            raise ValueError(
                f"ScalarMix expects the index of one of the {len(mixes)} mixes of {preset}. "
                f"Received: index={index!r}. AllenNLP archives, TF-Hub modules and what "
                "keras-elmo convert makes of them hold mixes"
            )
        learned = mixes[index]
        mix = cls(**{"layer_norm": learned.layer_norm, **kwargs})
        mix.build((None, None, len(learned.scalars), None))
        mix.scalars.assign(np.array(learned.scalars, "float32"))
        mix.gamma.assign(np.float32(learned.gamma))
        return mix

    def build(self, input_shape):
        if len(input_shape) != 4 or input_shape[2] is None:
            raise ValueError(
                "ScalarMix expects layer representations of shape (batch, tokens, layers, width), "
                f"layers known. Received: shape={tuple(input_shape)}. "
                'ElmoLayer(output="layers") gives them'
            )
        self.input_spec = keras.layers.InputSpec(ndim=4, axes={2: input_shape[2]})
        self.scalars = self.add_weight(
            shape=(input_shape[2],),
            initializer="zeros",
            regularizer=keras.regularizers.L2(self.l2) if self.l2 else None,
            name="scalars",
        )
        self.gamma = self.add_weight(shape=(), initializer="ones", name="gamma")

    def call(self, inputs, mask=None, training=None):
        if mask is not None:  # whatever stands in the padding, NaN too
            inputs = ops.where(ops.cast(mask, "bool")[..., None, None], inputs, 0)
        if self.layer_norm:
            normalize = _normalize_tokens if self.layer_norm == "token" else _normalize_batch
            precision = "float64" if self.compute_dtype == "float64" else "float32"
            inputs = ops.cast(normalize(ops.cast(inputs, precision), mask), inputs.dtype)
        weights = self.gamma * ops.softmax(self.scalars)
        mixed = sum(weights[j] * inputs[:, :, j] for j in range(inputs.shape[2]))
        if mask is not None:
            mixed = mixed * ops.cast(mask, mixed.dtype)[..., None]
        return self.dropout_layer(mixed, training=training)

    @property
    def layer_weights(self) -> np.ndarray:
        """The softmax of ``scalars``: float, shape ``(layers,)``, sum 1, as NumPy."""
        if not self.built:
            raise ValueError(
                "ScalarMix has no layer_weights before it is built. Call it, or the model, first"
            )
        return ops.convert_to_numpy(ops.softmax(ops.cast(self.scalars, "float32")))

    def compute_output_shape(self, input_shape):
        return (*input_shape[:2], input_shape[3])

    def get_config(self):
        return {
            **super().get_config(),
            "layer_norm": self.layer_norm,
            "dropout": self.dropout,
            "l2": self.l2,
        }


def _normalize_tokens(x, mask):
    """Shift and scale every layer of every token by the mean and variance of its features."""
    mean, variance = ops.moments(x, axes=-1, keepdims=True)
    return (x - mean) * ops.rsqrt(variance + 1e-12)


def _normalize_batch(x, mask):
    """Shift and scale every layer by one mean and one variance of its unmasked values."""
    if mask is None:
        mask = ops.ones_like(x[:, :, 0, 0])
    real = ops.cast(mask, x.dtype)[:, :, None, None]
    count = ops.maximum(ops.sum(real), 1) * x.shape[3]
    mean = ops.sum(x * real, axis=(0, 1, 3), keepdims=True) / count
    variance = ops.sum(((x - mean) * real) ** 2, axis=(0, 1, 3), keepdims=True) / count
    return (x - mean) * ops.rsqrt(variance + 1e-12)
