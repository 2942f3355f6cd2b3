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
        self.convolutions = [
            self.add_kernel_and_bias(f"conv_{i}", (width, config.character_embedding_dim, count))
            for i, (width, count) in enumerate(config.filters)
        ]
        self.highways = [
            self.build_part(Highway, f"highway_{i}", (None, config.n_filters))
            for i in range(config.n_highway)
        ]
        if config.has_projection:
            sizes = (config.n_filters, config.projection_dim)
            self.projection = self.add_kernel_and_bias("projection", sizes)
        if alphabet.n_words:
            self.word_embeddings = self.add_weight(
                shape=(alphabet.n_words + 1, alphabet.word_dim),
                initializer=_with_zero_padding(keras.initializers.GlorotUniform()),
                name="word_embeddings",
            )
            self.word_kernel = self.add_weight(
                shape=(alphabet.word_dim, config.projection_dim), name="word_kernel"
            )

    def call(self, inputs: Tensor) -> Tensor:
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
            x = highway(x)
        if self.config.has_projection:
            x = mixed_dense(x, *self.projection, self.product_dtype)
        if has_words:
            words = self._look_up(self.word_embeddings, inputs[:, 0])
            x = x + ops.matmul(words, self.word_kernel)
        return x

    def _look_up(self, table: Any, ids: Tensor) -> Tensor:
        if not self.frozen:
            # On TensorFlow the gradient of a look-up is sparse, with one row for each id. If an
            # id occurs twice, the norm of this gradient is wrong, and so is a clip by the norm. The
            # gradient of a product is dense.
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
        self.transform = self.add_kernel_and_bias("transform", (width, width), initializer)
        self.gate = self.add_kernel_and_bias("gate", (width, width), initializer, bias=-2.0)

    def call(self, inputs: Tensor) -> Tensor:
        transform = ops.relu(mixed_dense(inputs, *self.transform, self.product_dtype))
        gate = ops.sigmoid(mixed_dense(inputs, *self.gate, self.product_dtype))
        return gate * transform + (1 - gate) * inputs


def _with_zero_padding(initializer: Callable) -> Callable:
    """Start row 0, the padding, at zero. Files do not contain it; a loaded biLM has zeros there."""

    def initialize(shape: tuple, dtype: Any = None) -> Tensor:
        values = initializer(shape, dtype=dtype)
        return ops.concatenate([ops.zeros_like(values[:1]), values[1:]])

    return initialize
