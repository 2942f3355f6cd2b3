"""The character CNN: from the characters of a token to its token representation."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_elmo.alphabets import N_CHARACTERS
from keras_elmo.layers.backend.distinct_rows import distinct_rows
from keras_elmo.layers.backend.half_precision import mixed_dense
from keras_elmo.layers.backend.look_up import look_up
from keras_elmo.layers.freezable_layer import FreezableLayer
from keras_elmo.layers.highway import Highway
from keras_elmo.utils.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_elmo")
class CharCNN(FreezableLayer):
    """Compute token representations from characters (Peters et al., 2018, section 3.4).

    The layer embeds the characters, convolves every filter over them, takes the maximum over
    all positions and applies the activation. Highway layers and a linear projection follow.

    On a CPU, TensorFlow and PyTorch compute each distinct token of a batch once. Call
    ``represent`` for tokens that are known to be distinct.

    Args:
        filters: list of pairs of int. Width in characters and number of filters.
        character_embedding_dim: int. Features of a character embedding.
        n_highway: int. Number of highway layers, 0 or more.
        projection_dim: int. Features of the token representation.
        activation: str. ``"relu"`` or ``"tanh"``, applied after the max-pool.
        n_characters: int. Number of different character ids, 0 included.
        has_projection: bool or None. Whether a projection follows the highway layers. With
            None it does if the number of filters differs from ``projection_dim``.
        n_words: int. Number of words that have an embedding. A projection of the word embedding
            is added to the projection of the character features. 0 for characters only.
        word_dim: int. Features of a word embedding.
        **kwargs: Arguments of ``FreezableLayer``.

    Call arguments:
        inputs: Character ids, int, shape ``(..., characters)``; ``characters`` is at least
            the width of the widest filter. If ``n_words`` is not 0, the word id comes first.

    Returns:
        Token representations, float, shape ``(..., projection_dim)``.

    Examples:
        >>> ids = keras.ops.ones((2, 7, 50), dtype="int32")
        >>> cnn = CharCNN(((1, 4),), character_embedding_dim=4, n_highway=1, projection_dim=5)
        >>> keras.ops.shape(cnn(ids))
        (2, 7, 5)

    Reference:
        Kim et al., 2016, https://arxiv.org/abs/1508.06615
    """

    def __init__(
        self,
        filters: Sequence[Sequence[int]],
        character_embedding_dim: int,
        n_highway: int,
        projection_dim: int,
        activation: str = "relu",
        n_characters: int = N_CHARACTERS,
        has_projection: bool | None = None,
        n_words: int = 0,
        word_dim: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.filters = tuple((width, count) for width, count in filters)
        self.character_embedding_dim = character_embedding_dim
        self.n_highway = n_highway
        self.projection_dim = projection_dim
        self.activation = activation
        self.n_characters = n_characters
        if has_projection is None:
            has_projection = sum(count for _, count in self.filters) != projection_dim
        self.has_projection = has_projection
        self.n_words = n_words
        self.word_dim = word_dim

    def build(self, input_shape: tuple) -> None:
        n_filters = sum(count for _, count in self.filters)
        self.embeddings = self.add_weight(
            shape=(self.n_characters, self.character_embedding_dim),
            initializer=_with_zero_padding(keras.initializers.RandomUniform(-1.0, 1.0)),
            name="embeddings",
        )
        self.convolutions = []
        for i, (width, count) in enumerate(self.filters):
            kernel = self.add_weight(
                shape=(width, self.character_embedding_dim, count), name=f"conv_{i}_kernel"
            )
            bias = self.add_weight(shape=(count,), initializer="zeros", name=f"conv_{i}_bias")
            self.convolutions.append((kernel, bias))
        self.highways = [
            Highway(name=f"highway_{i}", **self.part_arguments) for i in range(self.n_highway)
        ]
        for highway in self.highways:
            highway.build((None, n_filters))
        if self.has_projection:
            self.projection_kernel = self.add_weight(
                shape=(n_filters, self.projection_dim), name="projection_kernel"
            )
            self.projection_bias = self.add_weight(
                shape=(self.projection_dim,), initializer="zeros", name="projection_bias"
            )
        if self.n_words:
            self.word_embeddings = self.add_weight(
                shape=(self.n_words + 1, self.word_dim),
                initializer=_with_zero_padding(keras.initializers.GlorotUniform()),
                name="word_embeddings",
            )
            self.word_kernel = self.add_weight(
                shape=(self.word_dim, self.projection_dim), name="word_kernel"
            )

    def call(self, inputs: Tensor) -> Tensor:
        *outer, characters = ops.shape(inputs)
        rows, indices = distinct_rows(ops.reshape(inputs, (-1, characters)))
        x = self.represent(rows)
        if indices is not None:
            x = ops.take(x, indices, axis=0)
        return ops.reshape(x, (*outer, self.projection_dim))

    def represent(self, rows: Tensor, product_dtype: str | None = None) -> Tensor:
        """Compute the representation of each token; ``call`` passes the distinct tokens of a batch.

        Args:
            rows: Character ids, int, shape ``(tokens, characters)``.
            product_dtype: str or None. Dtype of the matrix products after the convolutions;
                None for the dtype of the layer.

        Returns:
            Token representations, float, shape ``(tokens, projection_dim)``.
        """
        rows = ops.convert_to_tensor(rows)
        [embeddings] = self.in_compute_dtype(self.embeddings)
        embedded = look_up(embeddings, rows[:, 1:] if self.n_words else rows)
        activation = keras.activations.get(self.activation)
        features = []
        for pair in self.convolutions:
            kernel, bias = self.in_compute_dtype(*pair)
            windows = ops.conv(embedded, kernel, padding="valid", data_format="channels_last")
            # The bias is the same at all positions, and relu and tanh are monotonic, so both can
            # follow the maximum.
            features.append(activation(ops.max(windows, axis=1) + bias))
        x = ops.concatenate(features, axis=-1)
        for highway in self.highways:
            x = highway(x, product_dtype=product_dtype)
        if self.has_projection:
            kernel, bias = self.in_compute_dtype(self.projection_kernel, self.projection_bias)
            x = mixed_dense(x, kernel, bias, product_dtype)
        if self.n_words:
            embeddings, kernel = self.in_compute_dtype(self.word_embeddings, self.word_kernel)
            x = x + ops.matmul(look_up(embeddings, rows[:, 0]), kernel)
        return x

    def compute_output_spec(self, inputs: Tensor) -> keras.KerasTensor:
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=self.compute_dtype)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return (*input_shape[:-1], self.projection_dim)

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "filters": self.filters,
            "character_embedding_dim": self.character_embedding_dim,
            "n_highway": self.n_highway,
            "projection_dim": self.projection_dim,
            "activation": self.activation,
            "n_characters": self.n_characters,
            "has_projection": self.has_projection,
            "n_words": self.n_words,
            "word_dim": self.word_dim,
        }


def _with_zero_padding(initializer: Callable) -> Callable:
    """Start row 0, the padding, at zero. Files do not contain it; a loaded biLM has zeros there."""

    def initialize(shape: tuple, dtype: Any = None) -> Tensor:
        values = initializer(shape, dtype=dtype)
        return ops.concatenate([ops.zeros_like(values[:1]), values[1:]])

    return initialize
