"""Time a training step of a biLM, and its matrix products alone.

    TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=2 python benchmarks/pretraining.py CORPUS

CORPUS is a folder of ``keras-elmo prepare``. It times the products of the LSTMs (forward, and
twice as many backward), the softmax and the character CNN, with the mean sizes of the batches.
They are timed in the same run on the same threads, once in float32 and once in the dtype of
--products. The products of one time step always stay in float32. Those of Muon are not counted.
"""

import argparse
import functools
import itertools
import json
import pathlib
import time

import keras
import numpy as np
from keras import ops

import keras_elmo.layers.backend.half_precision as products_of
from keras_elmo.formats.vocabulary import read_vocabulary
from keras_elmo.pretraining.corpus import Batcher, Corpus
from keras_elmo.pretraining.language_model import BiLanguageModel
from keras_elmo.pretraining.optimizers import make_optimizer
from keras_elmo.recipe import SIZES, Recipe


def compiled(function):
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(function, reduce_retracing=True)
    if backend == "jax":
        import jax

        return jax.jit(function)
    return function


def median_seconds(function, times):
    function()
    found = []
    for _ in range(times):
        start = time.perf_counter()
        np.asarray(ops.convert_to_numpy(function()))
        found.append(time.perf_counter() - start)
    return float(np.median(found))


def products(config, tokens, rows, distinct, characters, negatives, dtype):
    """Return a function that computes only the matrix products of one training step."""
    matmul = functools.partial(products_of.mixed_matmul, product_dtype=dtype)
    width, cells, n_filters = config.projection_dim, config.lstm_dim, config.n_filters
    all_rows = tokens * rows
    rng = np.random.default_rng(0)

    def drawn(*shape):
        return ops.convert_to_tensor(rng.normal(0, 0.01, shape).astype("float32"))

    # Distinct tensors, passed as arguments: the compiler could share equal products.
    lstms = [
        {
            "x": drawn(all_rows, width),
            "gates": drawn(all_rows, 4 * cells),
            "kernels": (drawn(width, 4 * cells), drawn(width, 4 * cells)),
            "projection": drawn(cells, width),
        }
        for _ in range(2 * config.n_layers)
    ]
    pairs = [(drawn(all_rows, width), drawn(width, negatives)) for _ in range(2)]
    pairs += [
        (drawn(distinct, n_filters), drawn(n_filters, n_filters))
        for _ in range(2 * config.n_highway)
    ]
    pairs.append((drawn(distinct, n_filters), drawn(n_filters, width)))
    for w, count in config.filters:
        window = w * config.character_embedding_dim
        pairs.append((drawn(distinct * (characters - w + 1), window), drawn(window, count)))

    def both_ways(a, b):
        """Compute a product and the two products of its gradient."""
        y = matmul(a, b)
        return y[0, 0] + matmul(y, ops.transpose(b))[0, 0] + matmul(ops.transpose(a), y)[0, 0]

    def of_one_lstm(lstm):
        x, gates, projection = lstm["x"], lstm["gates"], lstm["projection"]
        of_inputs, recurrent = lstm["kernels"]
        total = both_ways(x, of_inputs)
        total += matmul(ops.transpose(x), gates)[0, 0]  # Gradient of the recurrent kernel.
        total += matmul(ops.transpose(gates[:, :cells]), x)[0, 0]  # Gradient of the projection.
        h = x[:rows]
        for _ in range(tokens):
            g = gates[:rows] + ops.matmul(h, recurrent)
            h = ops.matmul(g[:, :cells], projection)
        for _ in range(tokens):
            m = ops.matmul(h, ops.transpose(projection))
            h = ops.matmul(gates[:rows] + m[:, :1], ops.transpose(recurrent))
        return total + h[0, 0]

    @compiled
    def run(lstms, pairs):
        return sum(of_one_lstm(lstm) for lstm in lstms) + sum(both_ways(*pair) for pair in pairs)

    return lambda: run(lstms, pairs)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--size", default="mini", choices=SIZES)
    parser.add_argument("--optimizer", default="adam", choices=("adam", "muon"))
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--negatives", type=int, default=2048)
    parser.add_argument("--products", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()

    config = SIZES[arguments.size]
    is_jax = keras.backend.backend() == "jax"
    vocabulary = read_vocabulary(arguments.corpus / "vocab.txt")
    batcher = Batcher(
        vocabulary,
        widest_filter=config.widest_filter,
        batch_tokens=arguments.batch_tokens,
        fixed_shapes=is_jax,
    )
    files = sorted(arguments.corpus.glob("train-*.txt"))[:1]
    feed = itertools.islice(Corpus(files, batcher).batches(), arguments.steps)
    batches, counts, _ = zip(*feed)
    model = BiLanguageModel(
        config,
        len(vocabulary),
        n_negatives=arguments.negatives,
        dropout=0.0,
        product_dtype=arguments.products,
    )
    recipe = Recipe(
        optimizer=arguments.optimizer, clip_norm=5.0, precision=arguments.products, steps=1
    )
    model.compile(make_optimizer(recipe, 1e-3), jit_compile=is_jax)
    for batch in batches:
        model.train_on_batch(batch)
    start = time.perf_counter()
    for batch in batches:
        model.train_on_batch(batch)
    step = (time.perf_counter() - start) / len(batches)

    tokens = np.mean(counts)
    rows = np.mean([batch["words"].shape[0] for batch in batches])
    sizes = {
        "tokens": round(tokens / rows),
        "rows": round(rows),
        "distinct": round(np.mean([batch["characters"].shape[0] for batch in batches])),
        "characters": round(np.mean([batch["characters"].shape[1] for batch in batches])),
    }
    limits = {
        dtype: median_seconds(
            products(config, negatives=arguments.negatives, dtype=dtype, **sizes), 10
        )
        for dtype in {"float32", arguments.products}
    }
    facts = {
        "backend": keras.backend.backend(),
        **{name: getattr(arguments, name) for name in ("size", "optimizer", "products")},
        **sizes,
        "step_s": step,
        "tokens_per_s": tokens / step,
        **{f"{dtype}_products_s": limit for dtype, limit in limits.items()},
        **{f"share_of_{dtype}_limit": limit / step for dtype, limit in limits.items()},
    }
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
