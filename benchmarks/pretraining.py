"""Time a training step of a biLM, its matrix products alone, and other trainers.

    TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=2 python benchmarks/pretraining.py CORPUS
    python benchmarks/pretraining.py CORPUS --peer peer.py --peer-python peer/bin/python

CORPUS is a folder of ``keras-elmo prepare``. The first command times the products of the LSTMs
(forward, and twice as many backward), the softmax and the character CNN, with the mean sizes of
the batches. They are timed in the same run on the same threads, once in float32 and once in the
dtype of --products. The products of Muon are not counted. Batches are made before the time is
taken; in training, another thread makes them.

The second command prints a table: the sizes mini and small, with Adam in float32, then with Muon
in bfloat16 against the peer with --autocast bfloat16. It runs keras-elmo and the peer in turn, on
the same tokens, vocabulary and number of threads. The peer is a program that trains the same biLM:

    peer.py TOKENS --impl NAME --size SIZE --vocab VOCAB --batch-tokens N --negatives N --steps N
            --threads N --autocast DTYPE

Its last line must be a JSON object with the key "tokens_per_s", the words a second of the steps
after its first ones, without boundary tokens.
"""

import argparse
import functools
import itertools
import json
import os
import pathlib
import subprocess
import sys
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
        x, gates, of_inputs = lstm["x"], lstm["gates"], lstm["kernels"][0]
        # The layer casts the weights of the steps once, too.
        recurrent, projection = (
            ops.cast(w, dtype) for w in (lstm["kernels"][1], lstm["projection"])
        )
        total = both_ways(x, of_inputs)
        total += matmul(ops.transpose(x), gates)[0, 0]  # Gradient of the recurrent kernel.
        total += matmul(ops.transpose(gates[:, :cells]), x)[0, 0]  # Gradient of the projection.
        h = x[:rows]
        for _ in range(tokens):
            g = gates[:rows] + matmul(h, recurrent)
            h = matmul(g[:, :cells], projection)
        for _ in range(tokens):
            m = matmul(h, ops.transpose(projection))
            h = matmul(gates[:rows] + m[:, :1], ops.transpose(recurrent))
        return total + h[0, 0]

    @compiled
    def run(lstms, pairs):
        return sum(of_one_lstm(lstm) for lstm in lstms) + sum(both_ways(*pair) for pair in pairs)

    return lambda: run(lstms, pairs)


def compare(arguments):
    """Print the tokens/s of keras-elmo and of every peer, one process at a time."""
    print("| size | optimizer, products | trainer | tokens/s | ours / theirs | share of products |")
    print("|---|---|---|---|---|---|")
    shared = ["--batch-tokens", arguments.batch_tokens, "--negatives", arguments.negatives]
    shared += ["--steps", arguments.steps]
    corpus, threads = arguments.corpus, str(arguments.threads)
    tokens = sorted(corpus.glob("train-*.txt"))[0]
    of_peer = [arguments.peer_python, arguments.peer, tokens, "--vocab", corpus / "vocab.txt"]
    for size, (optimizer, dtype) in itertools.product(
        ("mini", "small"), (("adam", "float32"), ("muon", "bfloat16"))
    ):
        ours = ["--optimizer", optimizer, "--products", dtype, "--size", size]
        commands = {"keras-elmo": [sys.executable, __file__, corpus, *ours, *shared]}
        for name in arguments.impl:
            theirs = ["--impl", name, "--autocast", dtype, "--size", size, "--threads", threads]
            commands[name] = [*of_peer, *theirs, *shared]
        found = {name: [] for name in commands}
        for _ in range(arguments.rounds):
            for name, command in commands.items():
                found[name].append(last_object(command, threads))
        rates = {n: np.median([f["tokens_per_s"] for f in facts]) for n, facts in found.items()}
        shares = [facts[f"share_of_{dtype}_limit"] for facts in found["keras-elmo"]]
        for name, rate in rates.items():
            is_ours = name == "keras-elmo"
            ratio, share = rates["keras-elmo"] / rate, np.median(shares)
            cells = f"{rate:.0f} | {'' if is_ours else f'{ratio:.2f}'} | "
            cells += f"{share:.2f}" if is_ours else ""
            print(f"| {size} | {optimizer}, {dtype} | {name} | {cells} |", flush=True)


def last_object(command, threads):
    """Run a command; return the JSON object at the end of what it prints."""
    variables = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": threads}
    finished = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env=os.environ | variables
    )
    if finished.returncode:
        raise RuntimeError(f"{command} failed:\n{finished.stderr[-2000:]}")
    return json.loads(finished.stdout[finished.stdout.rindex("{") :])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--size", default="mini", choices=SIZES)
    parser.add_argument("--optimizer", default="adam", choices=("adam", "muon"))
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--negatives", type=int, default=2048)
    parser.add_argument("--products", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--peer", type=pathlib.Path, help="program to compare with")
    parser.add_argument("--peer-python", default=sys.executable, help="Python for the peer")
    parser.add_argument("--impl", nargs="+", default=["allennlp", "torch", "cell"])
    parser.add_argument("--threads", type=int, default=2, help="threads of each side, with --peer")
    parser.add_argument("--rounds", type=int, default=3, help="processes a row, with --peer")
    arguments = parser.parse_args()
    if arguments.peer:
        compare(arguments)
        return

    config = SIZES[arguments.size]
    is_jax = keras.backend.backend() == "jax"
    vocabulary = read_vocabulary(arguments.corpus / "vocab.txt")
    batcher = Batcher(config, vocabulary, arguments.batch_tokens)
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
