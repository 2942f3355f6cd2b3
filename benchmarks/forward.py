"""Time a forward pass of ElmoLayer next to its matrix products alone, in one run.

    python benchmarks/forward.py [--size original] [--sentences 32] [--tokens 25]

Weights and tokens are random. The products are those of the same shapes and the same
order: the convolutions as products of already cut windows, and in each LSTM the input
for all steps at once, then per step the recurrent product and the projection, each on
the result of the step before.
"""

import argparse
import json
import platform
import time

import keras
import numpy as np
from keras import ops

import keras_elmo

SIZES = {
    "original": keras_elmo.BiLMConfig(),
    "small": keras_elmo.BiLMConfig(lstm_dim=1024, projection_dim=128, n_highway=1),
}


class MatrixProducts(keras.layers.Layer):
    """The matrix products of a biLM and nothing else."""

    def __init__(self, config, sentences, tokens):
        super().__init__()
        self.config, self.sentences, self.tokens = config, sentences, tokens

    def build(self, input_shape):
        c, rows = self.config, self.sentences * self.tokens

        def matrix(*shape):
            return self.add_weight(shape=shape, initializer="glorot_uniform")

        self.windows = []
        for width, count in c.filters:
            positions = c.max_characters_per_token - width + 1
            size = width * c.character_embedding_dim
            self.windows.append((matrix(rows * positions, size), matrix(size, count)))
        self.highways = [matrix(c.n_filters, c.n_filters) for _ in range(2 * c.n_highway)]
        self.features = matrix(rows, c.n_filters)
        self.projection = matrix(c.n_filters, c.projection_dim)
        gates = 4 * c.lstm_dim
        self.lstms = [
            [matrix(c.projection_dim, gates) for _ in range(2)]
            + [matrix(c.lstm_dim, c.projection_dim)]
            for _ in range(2 * c.n_layers)
        ]

    def call(self, inputs):
        # A maximum, because a compiler may turn the sum or a row of a product into less work.
        total = ops.sum(inputs)
        for window, kernel in self.windows:
            total += ops.max(ops.matmul(window, kernel))
        x = self.features
        for kernel in self.highways:
            x = ops.matmul(x, kernel)
        token = ops.matmul(x, self.projection)
        for kernel, recurrent, projection in self.lstms:
            total += ops.max(ops.matmul(token, kernel))
            h = token[: self.sentences]
            for _ in range(self.tokens):
                gates = ops.matmul(h, recurrent)
                h = ops.matmul(gates[:, : self.config.lstm_dim], projection)
            total += ops.max(h)
        return ops.reshape(total, (1,))


def best_time(model, inputs, repeats):
    model.predict_on_batch(inputs)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        model.predict_on_batch(inputs)
        times.append(time.perf_counter() - start)
    return min(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="original")
    parser.add_argument("--sentences", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=25)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    config = SIZES[arguments.size]

    letters = np.random.default_rng(0).integers(98, 124, (arguments.sentences, arguments.tokens, 8))
    tokens = [["".join(map(chr, word)) for word in sentence] for sentence in letters]
    ids = ops.convert_to_numpy(keras_elmo.CharacterTokenizer()(tokens))
    inputs = keras.Input((None, 50), dtype="int32")
    elmo = keras_elmo.ElmoLayer(config)
    forward = best_time(keras.Model(inputs, elmo(inputs)), ids, arguments.repeats)

    inputs = keras.Input((1,))
    products = MatrixProducts(config, arguments.sentences, arguments.tokens + 2)
    limit = best_time(keras.Model(inputs, products(inputs)), np.zeros((1, 1)), arguments.repeats)

    result = {
        "size": arguments.size,
        "parameters": elmo.count_params(),
        "backend": keras.backend.backend(),
        "sentences": arguments.sentences,
        "tokens": arguments.tokens,
        "forward_s": round(forward, 4),
        "products_s": round(limit, 4),
        "share_of_products": round(limit / forward, 3),
        "tokens_per_s": round(arguments.sentences * arguments.tokens / forward),
        "machine": platform.processor() or platform.machine(),
    }
    if arguments.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:18} {value}")


if __name__ == "__main__":
    main()
