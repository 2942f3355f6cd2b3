"""Time a forward pass of ElmoLayer and, in the same run, its matrix products alone.

    python benchmarks/forward.py [--size original] [--sentences 32] [--tokens 25]

Weights and tokens are random, and all tokens are distinct. products.py makes matrix products of
equal shapes in equal order.
"""

import argparse
import json
import platform

import keras
import numpy as np
from keras import ops
from limit import seconds
from products import CharCNNProducts, LSTMProducts, as_model

import keras_elmo

SIZES = {
    "original": keras_elmo.BiLMConfig(),
    "small": keras_elmo.BiLMConfig(lstm_dim=1024, projection_dim=128, n_highway=1),
}


def best_time(model, inputs, repeats):
    model.predict_on_batch(inputs)
    return seconds(lambda: model.predict_on_batch(inputs), repeats)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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

    length = arguments.tokens + 2
    products = [
        LSTMProducts(config, arguments.sentences, length),
        CharCNNProducts(config, arguments.sentences * arguments.tokens + 2, 50),
    ]
    limit = sum(
        best_time(as_model(layer), np.zeros((1, 1)), arguments.repeats) for layer in products
    )

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
