"""The character CNN: a token's characters to its context-free representation."""

import keras
from keras import ops

from keras_elmo.config import N_CHARACTERS
from keras_elmo.layers.backend.custom_gradient import call_with_gradient
from keras_elmo.layers.backend.half_precision import affine
from keras_elmo.layers.backend.tracing import is_for_a_converter
from keras_elmo.layers.freezable_layer import FreezableLayer
from keras_elmo.layers.highway import Highway


@keras.saving.register_keras_serializable(package="keras_elmo")
class CharCNN(FreezableLayer):
    """Compute the token representation from the characters of a token.

    The characters are embedded; every filter is convolved over them and the
    largest value of all positions goes through the activation; highways and a
    linear projection follow (Peters et al., 2018, section 3.4).

    On CPUs TensorFlow and PyTorch find the distinct tokens of a batch first and compute
    each once. JAX and XLA compile for fixed sizes, on a GPU the search takes longer than what
    it saves, and exports of TensorFlow to ONNX and LiteRT know no such search: there all
    tokens are computed. ``represent`` is for tokens that are known to be distinct.

    Args:
        filters: Pairs (width in characters, number of filters).
        character_embedding_dim: Features per character.
        n_highway: Highways behind the max-pool, 0 or more.
        projection_dim: Features of the token representation. If the filters sum
            to it there is no projection.
        activation: ``"relu"`` or ``"tanh"``, behind the max-pool.
        n_characters: Character ids, padding included.
        has_projection: Whether there is a projection; None for what the sizes say.
        n_words: Words that have an embedding of their own. It goes through the projection
            with the features of the characters.
        word_dim: Features of such an embedding.
        **kwargs: Passed on to ``FreezableLayer``.

    Call arguments:
        inputs: Character ids, int, shape ``(..., characters)``; ``characters`` at
            least the widest filter. With words, the id of the word stands in front of them.

    Returns:
        Token representation, float, shape ``(..., projection_dim)``.

    Example:

    >>> ids = keras.ops.ones((2, 7, 50), dtype="int32")
    >>> cnn = CharCNN(((1, 4), (3, 8)), character_embedding_dim=4, n_highway=1, projection_dim=5)
    >>> keras.ops.shape(cnn(ids))
    (2, 7, 5)

    Reference:
        Kim et al., 2016, https://arxiv.org/abs/1508.06615
    """

    def __init__(
        self,
        filters,
        character_embedding_dim,
        n_highway,
        projection_dim,
        activation="relu",
        n_characters=N_CHARACTERS,
        has_projection=None,
        n_words=0,
        word_dim=0,
        **kwargs,
    ):
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

    def build(self, input_shape):
        n_filters = sum(count for _, count in self.filters)
        self.embeddings = self.add_weight(
            shape=(self.n_characters, self.character_embedding_dim),
            initializer=_zero_padding(keras.initializers.RandomUniform(-1.0, 1.0)),
            name="embeddings",
        )
        self.convolutions = []
        for i, (width, count) in enumerate(self.filters):
            kernel = self.add_weight(
                shape=(width, self.character_embedding_dim, count), name=f"conv_{i}_kernel"
            )
            bias = self.add_weight(shape=(count,), initializer="zeros", name=f"conv_{i}_bias")
            self.convolutions.append((kernel, bias))
        self.highways = [Highway(name=f"highway_{i}", **self.inner) for i in range(self.n_highway)]
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
                initializer=_zero_padding(keras.initializers.GlorotUniform()),
                name="word_embeddings",
            )
            self.word_kernel = self.add_weight(
                shape=(self.word_dim, self.projection_dim), name="word_kernel"
            )

    def call(self, inputs):
        *outer, characters = ops.shape(inputs)
        rows, row_of_token = _distinct(ops.reshape(inputs, (-1, characters)))
        x = self.represent(rows)
        if row_of_token is not None:
            x = ops.take(x, row_of_token, axis=0)
        return ops.reshape(x, (*outer, self.projection_dim))

    def represent(self, rows, product_dtype=None):
        """Compute every row, without looking for equal ones.

        Args:
            rows: Character ids, int, shape ``(rows, characters)``.
            product_dtype: Of the matrix products behind the convolutions, if not that of the
                layer.

        Returns:
            Token representations, float, shape ``(rows, projection_dim)``.
        """
        rows = ops.convert_to_tensor(rows)
        [embeddings] = self.in_compute_dtype(self.embeddings)
        embedded = _look_up(embeddings, rows[:, 1:] if self.n_words else rows)
        activation = keras.activations.get(self.activation)
        features = []
        for pair in self.convolutions:
            kernel, bias = self.in_compute_dtype(*pair)
            windows = ops.conv(embedded, kernel, padding="valid", data_format="channels_last")
            # relu and tanh grow with their input, so the activation can follow the maximum.
            features.append(activation(ops.max(windows, axis=1) + bias))
        x = ops.concatenate(features, axis=-1)
        for highway in self.highways:
            x = highway(x, product_dtype=product_dtype)
        if self.has_projection:
            kernel, bias = self.in_compute_dtype(self.projection_kernel, self.projection_bias)
            x = affine(x, kernel, bias, product_dtype)
        if self.n_words:
            embeddings, kernel = self.in_compute_dtype(self.word_embeddings, self.word_kernel)
            x = x + ops.matmul(_look_up(embeddings, rows[:, 0]), kernel)
        return x

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=self.compute_dtype)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.projection_dim)

    def get_config(self):
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


def _distinct(rows):
    """Return the distinct rows, and which of them every row is; or all rows and None."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        # UniqueV2 has no kernel for a GPU, and sorts under XLA.
        if not (_in_xla() or is_for_a_converter() or tf.config.list_logical_devices("GPU")):
            return tf.raw_ops.UniqueV2(x=rows, axis=[0])
    if backend == "torch" and rows.device.type == "cpu":
        import torch

        return torch.unique(rows, dim=0, return_inverse=True)
    return rows, None


def _in_xla():
    """Tell whether TensorFlow builds a graph for XLA, which it tells nobody in public."""
    import tensorflow as tf
    from tensorflow.python.ops import control_flow_util

    return control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def _look_up(table, ids):
    """Take rows of the table.

    The gradient of ``ops.take`` is sparse on TensorFlow, with a row for every id, and the norm
    of those rows is not that of the gradient.
    """
    [rows] = call_with_gradient(
        _take, _record_take, _add_up_rows, (int(table.shape[0]),), (table, ids)
    )
    return rows


def _take(options, table, ids):
    return (ops.take(table, ids, axis=0),)


def _record_take(options, table, ids):
    return _take(options, table, ids), (ids,)


def _add_up_rows(options, kept, upstream):
    ids, rows = ops.reshape(kept[0], (-1,)), upstream[0]
    rows = ops.reshape(rows, (-1, rows.shape[-1]))
    return ops.segment_sum(rows, ids, num_segments=options[0]), None


def _zero_padding(initializer):
    """Let row 0, that of padding, begin as the 0 that it is in a loaded biLM: no file holds it."""

    def initialize(shape, dtype=None):
        values = initializer(shape, dtype=dtype)
        return ops.concatenate([ops.zeros_like(values[:1]), values[1:]])

    return initialize
