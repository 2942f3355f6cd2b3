"""The character CNN: from the characters of a token to its token representation."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_elmo.layers.backend.half_precision import mixed_dense
from keras_elmo.layers.bilm_part import BiLMPart
from keras_elmo.utils.typing import Tensor


class CharCNN(BiLMPart):
    """Compute token representations from characters (Peters et al., 2018, section 3.4).

    The layer embeds the characters, convolves every filter over them, takes the maximum over
    all positions and applies the activation. Highway layers and a linear projection follow.
    If the biLM knows words, a projection of the word embedding is added.

    Args:
        config: ``BiLMConfig``. The architecture of the biLM.
        **kwargs: Arguments of ``BiLMPart``.

    Call arguments:
        inputs: Character ids of tokens, int, shape ``(tokens, characters)``; ``characters`` is
            at least the width of the widest filter. A word id comes first if the biLM has words.
        product_dtype: str or None. Dtype of the matrix products after the convolutions; None
            for the dtype of the layer.

    Returns:
        Token representations, float, shape ``(tokens, projection_dim)``.

    Examples:
        >>> cnn = CharCNN(keras_elmo.BiLMConfig(lstm_dim=8, projection_dim=5, filters=((1, 4),)))
        >>> keras.ops.shape(cnn(keras.ops.ones((7, 50), dtype="int32")))
        (7, 5)

    Reference:
        Kim et al., 2016, https://arxiv.org/abs/1508.06615
    """

    def build(self, input_shape: tuple) -> None:
        config, alphabet = self.config, self.config.alphabet
        self.embeddings = self.add_weight(
            shape=(alphabet.n_characters, config.character_embedding_dim),
            initializer=_with_zero_padding(keras.initializers.RandomUniform(-1.0, 1.0)),
            name="embeddings",
        )
        self.convolutions = []
        for i, (width, count) in enumerate(config.filters):
            kernel = self.add_weight(
                shape=(width, config.character_embedding_dim, count), name=f"conv_{i}_kernel"
            )
            bias = self.add_weight(shape=(count,), initializer="zeros", name=f"conv_{i}_bias")
            self.convolutions.append((kernel, bias))
        self.highways = [
            Highway(name=f"highway_{i}", **self.part_arguments) for i in range(config.n_highway)
        ]
        for highway in self.highways:
            highway.build((None, config.n_filters))
        if config.has_projection:
            self.projection_kernel = self.add_weight(
                shape=(config.n_filters, config.projection_dim), name="projection_kernel"
            )
            self.projection_bias = self.add_weight(
                shape=(config.projection_dim,), initializer="zeros", name="projection_bias"
            )
        if alphabet.n_words:
            self.word_embeddings = self.add_weight(
                shape=(alphabet.n_words + 1, alphabet.word_dim),
                initializer=_with_zero_padding(keras.initializers.GlorotUniform()),
                name="word_embeddings",
            )
            self.word_kernel = self.add_weight(
                shape=(alphabet.word_dim, config.projection_dim), name="word_kernel"
            )

    def call(self, inputs: Tensor, product_dtype: str | None = None) -> Tensor:
        has_words = self.config.alphabet.n_words > 0
        embedded = self._look_up(self.embeddings, inputs[:, 1:] if has_words else inputs)
        activation = keras.activations.get(self.config.activation)
        features = []
        for kernel, bias in self.convolutions:
            windows = ops.conv(embedded, kernel, padding="valid", data_format="channels_last")
            # The bias is the same at all positions, and relu and tanh are monotonic, so both can
            # follow the maximum.
            features.append(activation(ops.max(windows, axis=1) + bias))
        x = ops.concatenate(features, axis=-1)
        for highway in self.highways:
            x = highway(x, product_dtype=product_dtype)
        if self.config.has_projection:
            x = mixed_dense(x, self.projection_kernel, self.projection_bias, product_dtype)
        if has_words:
            words = self._look_up(self.word_embeddings, inputs[:, 0])
            x = x + ops.matmul(words, self.word_kernel)
        return x

    def _look_up(self, table: Any, ids: Tensor) -> Tensor:
        if not self.frozen:
            # On TensorFlow the gradient of a look-up is sparse, with one row for each id. If an
            # id occurs twice, its norm is wrong, and so is a clip by the norm. The gradient of
            # a product is dense.
            table = table * 1
        return ops.take(table, ids, axis=0)


class Highway(BiLMPart):
    """Mix a transform of the input with the input itself, by a gate for each feature.

    The output is ``gate * relu(x W_transform + b_transform) + (1 - gate) * x`` with
    ``gate = sigmoid(x W_gate + b_gate)``. The bias of the gate starts at -2, so that an
    untrained layer passes most of its input on.

    Reference:
        Srivastava et al., 2015, https://arxiv.org/abs/1505.00387
    """

    def build(self, input_shape: tuple) -> None:
        width = input_shape[-1]
        initializer = keras.initializers.RandomNormal(stddev=width**-0.5)
        self.transform_kernel = self.add_weight(
            shape=(width, width), initializer=initializer, name="transform_kernel"
        )
        self.transform_bias = self.add_weight(
            shape=(width,), initializer="zeros", name="transform_bias"
        )
        self.gate_kernel = self.add_weight(
            shape=(width, width), initializer=initializer, name="gate_kernel"
        )
        self.gate_bias = self.add_weight(
            shape=(width,), initializer=keras.initializers.Constant(-2.0), name="gate_bias"
        )

    def call(self, inputs: Tensor, product_dtype: str | None = None) -> Tensor:
        transform = mixed_dense(inputs, self.transform_kernel, self.transform_bias, product_dtype)
        transform = ops.relu(transform)
        gate = ops.sigmoid(mixed_dense(inputs, self.gate_kernel, self.gate_bias, product_dtype))
        return gate * transform + (1 - gate) * inputs


def _with_zero_padding(initializer: Callable) -> Callable:
    """Start row 0, the padding, at zero. Files do not contain it; a loaded biLM has zeros there."""

    def initialize(shape: tuple, dtype: Any = None) -> Tensor:
        values = initializer(shape, dtype=dtype)
        return ops.concatenate([ops.zeros_like(values[:1]), values[1:]])

    return initialize
