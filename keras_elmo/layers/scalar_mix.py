"""The learned sum of the layer representations (Peters et al., 2018, eq. 1)."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_elmo.presets import open_preset
from keras_elmo.utils.checks import invalid, is_number, is_whole, shorten
from keras_elmo.utils.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_elmo")
class ScalarMix(keras.layers.Layer):
    """Collapse the layer representations of a biLM into one, by a learned weighted sum.

    For layer representations ``h_0 .. h_L`` the ELMo representation of every token is
    ``gamma * sum_j softmax(scalars)_j * h_j``. ``scalars`` starts at zero and
    ``gamma`` at one, so an untrained mix is the plain average of the layers.

    Args:
        layer_norm: bool or str. Normalise every layer to mean 0 and variance 1 before the sum,
            without scale or shift. ``True`` computes mean and variance over all features of
            all unmasked tokens of the batch, as bilm-tf does. The result for a sentence then
            depends on the other sentences of the batch. ``"token"`` computes them over the
            features of each token (Ba et al., 2016): use it in models that serve single
            sentences. AllenNLP counts ``<S>`` and ``</S>`` as tokens. To get its results, pass
            ``keep_boundaries=True`` to ``ElmoLayer``; without it values differ by 0.1 to 0.3.
        dropout: float. Rate in [0, 1) on the mixed representation, in training only.
        l2: float. Weight of the penalty ``sum(scalars**2)``, on the scalars before the
            softmax. 1 keeps the mix near the average, 1e-3 lets the weights differ
            (sections 3.3 and 5.1 of the paper).
        **kwargs: Arguments of ``keras.layers.Layer``.

    Call arguments:
        inputs: Layer representations, float, shape ``(batch, tokens, layers, width)``;
            ``layers`` static, index 0 the token representation.
        mask: Bool, shape ``(batch, tokens)``, or None. Keras passes the mask of
            ``ElmoLayer``.

    Returns:
        ELMo representations, float, shape ``(batch, tokens, width)``.

    Masking: returns the incoming mask; the output is 0 in padding.

    Raises:
        ValueError: If an argument is invalid; in ``build``, if the input is not 4-D or
            ``layers`` is unknown.

    Examples:
        >>> layers = np.random.rand(2, 7, 3, 1024)  # 2 sentences, 7 tokens, 3 layers
        >>> keras.ops.shape(ScalarMix()(layers))
        (2, 7, 1024)

    Reference:
        Peters et al., 2018, section 3.2, https://arxiv.org/abs/1802.05365; Ba et al., 2016,
        https://arxiv.org/abs/1607.06450
    """

    def __init__(
        self,
        layer_norm: bool | str = False,
        dropout: float = 0.0,
        l2: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not (isinstance(layer_norm, bool) or layer_norm == "token"):
            expected = 'ScalarMix expects layer_norm to be False, True or "token"'
            raise invalid(expected, f"layer_norm={shorten(layer_norm)}")
        if not (is_number(dropout) and 0 <= dropout < 1):
            raise invalid("ScalarMix expects dropout in [0, 1)", f"dropout={shorten(dropout)}")
        if not (is_number(l2) and l2 >= 0):
            raise invalid("ScalarMix expects l2 of 0 or more", f"l2={shorten(l2)}")
        self.layer_norm = layer_norm
        self.dropout = dropout
        self.l2 = l2
        self.supports_masking = True
        self.dropout_layer = keras.layers.Dropout(dropout, dtype=self.dtype_policy)

    @classmethod
    def from_preset(cls, preset: Any, index: int = 0, **kwargs: Any) -> "ScalarMix":
        """Build the learned mix of an AllenNLP archive or a TF-Hub module.

        Args:
            preset: str or path. See ``ElmoLayer.from_preset``.
            index: int. Number of the mix, from 0, if an archive contains several.
            **kwargs: Arguments of ``ScalarMix``. The default of ``layer_norm`` is the setting
                in the archive.

        Returns:
            A built ``ScalarMix``, with the learned ``scalars`` and ``gamma``.

        Raises:
            OSError: If a file is missing or damaged.
            ValueError: If the preset contains no such mix.
        """
        mixes = open_preset(preset).read_mixes()
        if not is_whole(index) or index >= len(mixes):
            raise invalid(
                f"ScalarMix expects the index of one of the {len(mixes)} mixes of {preset}",
                f"index={shorten(index)}",
                "Mixes are in AllenNLP archives and TF-Hub modules, and in presets that "
                "keras-elmo convert makes of them",
            )
        learned = mixes[index]
        mix = cls(**{"layer_norm": learned.layer_norm, **kwargs})
        mix.build((None, None, len(learned.scalars), None))
        mix.scalars.assign(np.array(learned.scalars, "float32"))
        mix.gamma.assign(np.float32(learned.gamma))
        return mix

    def build(self, input_shape: tuple) -> None:
        is_dict = isinstance(input_shape, dict)  # as from ElmoLayer(output="all")
        if is_dict or len(input_shape) != 4 or input_shape[2] is None:
            raise invalid(
                "ScalarMix expects layer representations of shape (batch, tokens, layers, width) "
                "with a known number of layers",
                f"shape={shorten(input_shape)}",
                'ElmoLayer(output="layers") returns them',
            )
        self.input_spec = keras.layers.InputSpec(ndim=4, axes={2: input_shape[2]})
        self.scalars = self.add_weight(
            shape=(input_shape[2],),
            initializer="zeros",
            regularizer=keras.regularizers.L2(self.l2) if self.l2 else None,
            name="scalars",
        )
        self.gamma = self.add_weight(shape=(), initializer="ones", name="gamma")

    def call(
        self, inputs: Tensor, mask: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        if mask is not None:
            mask = ops.cast(mask, "bool")[..., None, None]
            inputs = ops.where(mask, inputs, 0)  # padding may be NaN
        if self.layer_norm:
            normalize = _normalize_tokens if self.layer_norm == "token" else _normalize_batch
            precision = "float64" if self.compute_dtype == "float64" else "float32"
            inputs = ops.cast(normalize(ops.cast(inputs, precision), mask), inputs.dtype)
            if mask is not None:  # The norm over a batch moves padding away from 0.
                inputs = ops.where(mask, inputs, 0)
        weights = self.gamma * _softmax(self.scalars)
        mixed = sum(weights[j] * inputs[:, :, j] for j in range(inputs.shape[2]))
        return self.dropout_layer(mixed, training=training)

    @property
    def layer_weights(self) -> np.ndarray:
        """The softmax of ``scalars``: float, shape ``(layers,)``, sum 1, as NumPy."""
        if not self.built:
            raise ValueError(
                "ScalarMix has no layer_weights before it is built. Call it, or the model, first"
            )
        return ops.convert_to_numpy(_softmax(ops.cast(self.scalars, "float32")))

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return (*input_shape[:2], input_shape[3])

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "layer_norm": self.layer_norm,
            "dropout": self.dropout,
            "l2": self.l2,
        }


def _softmax(scalars: Tensor) -> Tensor:
    """Return the softmax; ``ops.softmax`` would warn about a single layer."""
    return ops.exp(scalars - ops.logsumexp(scalars))


def _normalize_tokens(x: Tensor, mask: Tensor | None) -> Tensor:
    """Normalise every layer of every token over its features. This needs no mask."""
    mean, variance = ops.moments(x, axes=-1, keepdims=True)
    return (x - mean) * ops.rsqrt(variance + 1e-12)


def _normalize_batch(x: Tensor, mask: Tensor | None) -> Tensor:
    """Normalise every layer over the features of all unmasked tokens."""
    # 1 for tokens, 0 for padding: (batch, tokens, 1, 1)
    real = ops.ones_like(x[:, :, :1, :1]) if mask is None else ops.cast(mask, x.dtype)
    count = ops.maximum(ops.sum(real), 1) * x.shape[3]
    mean = ops.sum(x * real, axis=(0, 1, 3), keepdims=True) / count
    variance = ops.sum(((x - mean) * real) ** 2, axis=(0, 1, 3), keepdims=True) / count
    return (x - mean) * ops.rsqrt(variance + 1e-12)
