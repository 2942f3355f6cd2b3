"""Measure how time and memory of Embedder grow with the sentence, the batch, the words, the file.

    python benchmarks/scale.py [--preset elmo_mini_en] [--engine auto] [--plot benchmarks/scale.png]

Each row is a process of its own: tokens/s after a first call on two tokens, and the memory that
the work adds to this process at its peak. Tokens are drawn at random from as many words as the row
says. Linear growth means equal tokens/s in all rows of a table.
"""

import argparse
import json
import pathlib
import subprocess
import sys

BASE = {"sentence": 20, "batch": 2048, "words": 1000, "tokens": 20_000}
TABLES = {
    "tokens of a sentence": [
        {"sentence": n, "tokens": max(n, 2000)} for n in (5, 20, 100, 1000, 5000, 20_000)
    ],
    "tokens of a batch": [{"batch": n} for n in (128, 512, 2048, 8192, 32_768)],
    "different words": [{"words": n, "tokens": 40_000} for n in (10, 100, 1000, 10_000, 30_000)],
    "tokens of a file": [{"file": True, "tokens": n} for n in (2000, 20_000, 200_000)],
}
VARIED = dict(zip(TABLES, ("sentence", "batch", "words", "tokens")))


def measure(preset, engine, sentence, batch, words, tokens, file=False):
    """Return the tokens/s and the MiB of one row; call it once in a process."""
    import resource
    import tempfile
    import time

    import numpy as np

    import keras_elmo

    def peak():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    embedder = keras_elmo.Embedder(preset, engine=engine, batch_tokens=batch)
    rng = np.random.default_rng(0)
    vocabulary = np.array([np.base_repr(n + 1000, 36).lower() for n in range(words)])
    drawn = vocabulary[rng.permutation(tokens) % words]
    sentences = [row.tolist() for row in np.split(drawn, range(sentence, tokens, sentence))]
    embedder.embed([["a", "b"]])
    start, before = time.perf_counter(), peak()
    if file:
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder, "text.txt")
            text.write_text("".join(" ".join(row) + "\n" for row in sentences))
            start = time.perf_counter()
            embedder.embed_file(text, f"{folder}/layers.hdf5", progress=False)
    else:
        embedder.embed(sentences)
    return {"tokens_per_s": tokens / (time.perf_counter() - start), "mib": peak() - before}


def plot(figures, path):
    from matplotlib import pyplot

    pyplot.style.use(pathlib.Path(__file__).parents[1] / "docs" / "pictures.mplstyle")
    figure, axes = pyplot.subplots(2, 4, figsize=(14, 5), sharex="col", layout="constrained")
    for column, (table, rows) in zip(axes.T, figures.items()):
        sizes = [row[VARIED[table]] for row in rows]
        for axis, key, label in zip(column, ("tokens_per_s", "mib"), ("tokens/s", "MiB")):
            axis.plot(sizes, [row[key] for row in rows], marker="o")
            axis.set(xscale="log", ylim=(0, None), ylabel=label)
        column[1].set_xlabel(table)
    figure.savefig(path)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="elmo_mini_en")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--plot", type=pathlib.Path, help="write a picture")
    parser.add_argument("--row", type=json.loads, help="measure a row in this process")
    arguments = parser.parse_args()
    if arguments.row:
        print(json.dumps(measure(arguments.preset, arguments.engine, **arguments.row)))
        return
    figures = {}
    for table, rows in TABLES.items():
        print(f"\n| {table} | tokens/s | MiB |\n|---|---|---|")
        figures[table] = []
        for changes in rows:
            row = BASE | changes
            command = [sys.executable, __file__, "--preset", arguments.preset]
            command += ["--engine", arguments.engine, "--row", json.dumps(row)]
            printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            row |= json.loads(printed.splitlines()[-1])
            figures[table].append(row)
            size = row[VARIED[table]]
            print(f"| {size} | {row['tokens_per_s']:.0f} | {row['mib']:.0f} |", flush=True)
    if arguments.plot:
        plot(figures, arguments.plot)


if __name__ == "__main__":
    main()
