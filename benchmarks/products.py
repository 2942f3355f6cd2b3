"""Compute only the matrix products of a biLM: the limit of the benchmarks."""

import keras
from keras import ops


class LSTMProducts(keras.layers.Layer):
    """Compute the products of all LSTMs for a batch of sentences.

    Each LSTM multiplies the input of all steps at once. Each step then has the recurrent product
    and the projection, on the result of the step before.
    """

    def __init__(self, config, sentences, tokens):
        super().__init__()
        self.config, self.sentences, self.tokens = config, sentences, tokens

    def build(self, input_shape):
        c = self.config
        self.token = self.add_weight(shape=(self.sentences * self.tokens, c.projection_dim))
        shapes = [
            (c.projection_dim, 4 * c.lstm_dim),
            (c.projection_dim, 4 * c.lstm_dim),
            (c.lstm_dim, c.projection_dim),
        ]
        self.lstms = [
            [self.add_weight(shape=shape) for shape in shapes] for _ in range(2 * c.n_layers)
        ]

    def call(self, inputs):
        # The maximum needs the whole product; a compiler could simplify a sum or a single row.
        total = ops.sum(inputs)
        for kernel, recurrent, projection in self.lstms:
            total += ops.max(ops.matmul(self.token, kernel))
            h = self.token[: self.sentences]
            for _ in range(self.tokens):
                gates = ops.matmul(h, recurrent)
                h = ops.matmul(gates[:, : self.config.lstm_dim], projection)
            total += ops.max(h)
        return ops.reshape(total, (1,))


class CharCNNProducts(keras.layers.Layer):
    """Compute the products of the character CNN for a number of words.

    The convolutions are products with windows that are cut beforehand.
    """

    def __init__(self, config, words, characters):
        super().__init__()
        self.config, self.words, self.characters = config, words, characters

    def build(self, input_shape):
        c = self.config
        self.windows = []
        for width, count in c.filters:
            rows = self.words * (self.characters - width + 1)
            size = width * c.character_embedding_dim
            self.windows.append(
                (self.add_weight(shape=(rows, size)), self.add_weight(shape=(size, count)))
            )
        self.features = self.add_weight(shape=(self.words, c.n_filters))
        square = (c.n_filters, c.n_filters)
        self.highways = [self.add_weight(shape=square) for _ in range(2 * c.n_highway)]
        self.projection = self.add_weight(shape=(c.n_filters, c.projection_dim))

    def call(self, inputs):
        total = ops.sum(inputs)
        for window, kernel in self.windows:
            total += ops.max(ops.matmul(window, kernel))
        x = self.features
        for kernel in self.highways:
            x = ops.matmul(x, kernel)
        return ops.reshape(total + ops.max(ops.matmul(x, self.projection)), (1,))


def as_model(layer):
    """Return a model that runs the products for any one number."""
    inputs = keras.Input((1,))
    return keras.Model(inputs, layer(inputs))
