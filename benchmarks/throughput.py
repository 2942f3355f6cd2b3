"""Tokens/s of Embedder, next to its matrix products alone and to AllenNLP, in one run.

    python benchmarks/throughput.py --data test.txt [--allennlp-python PYTHON]

--data takes Penn Treebank trees, one a line (SST test); without it sentences of random
words, as long as those of SST. Weights are random, sizes those of the released models.
The limit is the time of the products of the very batches that Embedder makes: those of
the LSTMs for every batch, those of the character CNN once for every distinct word; for
single sentences those of the LSTMs alone, beside the time for words that are known. Run it
on an idle machine; the backend is that of KERAS_BACKEND.
"""

import argparse
import datetime
import json
import os
import pathlib
import sys
import tempfile
import time

import keras
import numpy as np
from peer import ask_allennlp
from products import CharCNNProducts, LSTMProducts, as_model

import keras_elmo
from keras_elmo.embedding.embedder import length_batches

SIZES = {
    "original": keras_elmo.BiLMConfig(),
    "small": keras_elmo.BiLMConfig(lstm_dim=1024, projection_dim=128, n_highway=1),
}


def seconds(call, repeats=1):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def read_sentences(path, limit):
    if path:
        import nltk

        lines = path.read_text().splitlines()[:limit]
        return [nltk.Tree.fromstring(line).leaves() for line in lines]
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, rng.integers(97, 123, rng.integers(1, 12)))) for _ in range(6000)]
    frequency = 1 / np.arange(1, 6001)
    lengths = rng.integers(4, 36, limit)
    return [rng.choice(words, n, p=frequency / frequency.sum()).tolist() for n in lengths]


def measure_products(config, sentences, batch_tokens):
    """Return the seconds that the products take for the sentences as Embedder groups them."""
    zero = np.zeros((1, 1))
    total = 0.0
    for batch in length_batches([len(s) for s in sentences], batch_tokens):
        tokens = max(len(sentences[i]) for i in batch) + 2
        model = as_model(LSTMProducts(config, len(batch), tokens))
        model.predict_on_batch(zero)
        total += seconds(lambda model=model: model.predict_on_batch(zero), 2)
    lengths = [len(w.encode()) for w in {w for s in sentences for w in s}]
    longest = min(50, int(np.mean(lengths)) + 2 + config.widest_filter)
    model = as_model(CharCNNProducts(config, 256, longest))
    model.predict_on_batch(zero)
    words = len(lengths) / 256 * seconds(lambda: model.predict_on_batch(zero), 3)
    return total, words


def measure_single_products(config, sentences):
    """Return the seconds that the LSTM products take, one sentence at a time."""
    zero = np.zeros((1, 1))
    total = 0.0
    for length in {len(s) for s in sentences}:
        model = as_model(LSTMProducts(config, 1, length + 2))
        model.predict_on_batch(zero)
        count = sum(len(s) == length for s in sentences)
        total += count * seconds(lambda model=model: model.predict_on_batch(zero), 3)
    return total


def measure(name, sentences, arguments):
    config = SIZES[name]
    elmo = keras_elmo.ElmoLayer(config, dtype=arguments.dtype)
    elmo.build((None, None, 50))
    tokens = sum(map(len, sentences))
    singles = sentences[: arguments.single]
    single_tokens = sum(map(len, singles))

    warm = keras_elmo.Embedder(elmo, batch_tokens=arguments.batch_tokens)
    warm.embed(sentences)
    for sentence in singles if keras.backend.backend() == "jax" else singles[:3]:
        warm.embed([sentence])  # JAX compiles for every eight tokens of length

    def fresh():
        """Return an Embedder that knows no word, compiled before, as in a long run."""
        embedder = keras_elmo.Embedder(elmo, batch_tokens=arguments.batch_tokens)
        embedder._engine._programs = warm._engine._programs
        return embedder

    batched = seconds(lambda: fresh().embed(sentences))
    new, known = fresh(), warm
    single, single_known = (
        seconds(lambda e=embedder: [e.embed([s]) for s in singles]) for embedder in (new, known)
    )
    lstm_products, cnn_products = measure_products(config, sentences, arguments.batch_tokens)
    single_products = measure_single_products(config, singles)
    row = {
        "size": name,
        "backend": keras.backend.backend(),
        "dtype": arguments.dtype,
        "tokens": tokens,
        "batched_tokens_per_s": tokens / batched,
        "single_tokens_per_s": single_tokens / single,
        "single_known_words_tokens_per_s": single_tokens / single_known,
        "limit_batched_tokens_per_s": tokens / (lstm_products + cnn_products),
        "limit_single_tokens_per_s": single_tokens / single_products,
        "share_of_limit_batched": (lstm_products + cnn_products) / batched,
        "share_of_limit_single": single_products / single_known,
    }
    if arguments.allennlp_python:
        row |= measure_allennlp(elmo, warm, sentences, arguments)
    return row


def measure_allennlp(elmo, embedder, sentences, arguments):
    with tempfile.TemporaryDirectory() as folder:
        elmo.save_hdf5(folder)
        best = {"batched": 0, "single": 0}
        for threads in {1, os.cpu_count()}:
            job = {"single": arguments.single, "threads": threads, "check": 1}
            found = ask_allennlp(
                arguments.allennlp_python,
                f"{folder}/options.json",
                f"{folder}/weights.hdf5",
                {"sentences": sentences, **job},
            )
            best = {key: max(best[key], found[key]) for key in best}
    row = {f"allennlp_{key}_tokens_per_s": value for key, value in best.items()}
    ours = embedder.embed(sentences[:1])[0]
    row["difference_from_allennlp"] = float(np.abs(ours - np.array(found["layers"][0])).max())
    return row


def sweep(arguments):
    """Return tokens/s of the small size over batch size and sentence length."""
    elmo = keras_elmo.ElmoLayer(SIZES["small"])
    elmo.build((None, None, 50))
    rows = []
    for length in (5, 10, 20, 40, 80):
        for size in (1, 4, 16, 64, 256):
            embedder = keras_elmo.Embedder(elmo, batch_tokens=10**9)
            batch = [["word"] * length] * size
            embedder.embed(batch)
            took = seconds(lambda e=embedder, b=batch: e.embed(b), 3)
            rows.append({"tokens": length, "batch": size, "tokens_per_s": length * size / took})
    return rows


def plot(rows, path):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for length in sorted({row["tokens"] for row in rows}):
        points = [(r["batch"], r["tokens_per_s"]) for r in rows if r["tokens"] == length]
        axes.plot(*zip(*points), marker="o", label=f"{length} tokens")
    axes.set(xscale="log", xlabel="sentences in a batch", ylabel="tokens/s", title="small, float32")
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, help="Penn Treebank trees, one a line")
    parser.add_argument("--limit", type=int, default=2210, help="sentences, batched")
    parser.add_argument("--single", type=int, default=50, help="sentences one at a time")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--allennlp-python", help="a Python that has AllenNLP 2.10.1")
    parser.add_argument("--plot", help="write a picture of tokens/s over batch size and length")
    parser.add_argument("--json", type=pathlib.Path, help="write all figures to this file")
    arguments = parser.parse_args()
    sentences = read_sentences(arguments.data, arguments.limit)
    rows = [measure(name, sentences, arguments) for name in arguments.sizes]
    for row in rows:
        print()
        for key, value in row.items():
            print(f"{key:28} {value:.3g}" if isinstance(value, float) else f"{key:28} {value}")
    result = {
        "date": datetime.date.today().isoformat(),
        "cores": os.cpu_count(),
        "python": sys.version.split()[0],
        "keras": keras.__version__,
        "rows": rows,
    }
    if arguments.plot:
        result["sweep"] = sweep(arguments)
        plot(result["sweep"], arguments.plot)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
