"""Draw held-out perplexity over tokens for a chain of runs, each continuing the one before.

    python benchmarks/curves.py PICTURE NAME=LOG...

LOG is the ``log.csv`` of ``keras-elmo pretrain``, which ``export`` copies next to the model card.
Each run is scored on held-out text of its corpus, so the curve jumps where the corpus changes.
"""

import argparse
import csv
import pathlib

from matplotlib import style
from matplotlib.figure import Figure


def read_log(path):
    """Return the tokens and perplexities of the rows that have a perplexity."""
    with open(path, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["perplexity"]]
    if not rows:
        raise SystemExit(f"Expected the log of a run with held-out text. Received: {path}")
    return [float(row["tokens"]) for row in rows], [float(row["perplexity"]) for row in rows]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("picture", type=pathlib.Path)
    parser.add_argument("logs", nargs="+", metavar="NAME=LOG")
    arguments = parser.parse_args()
    style.use(pathlib.Path(__file__).parents[1] / "docs" / "pictures.mplstyle")
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    before = 0.0
    for given in arguments.logs:
        name, equals, path = given.partition("=")
        if not equals:
            parser.error(f"Expected NAME=LOG. Received: {given}")
        tokens, perplexity = read_log(path)
        axes.plot([(before + n) / 1e6 for n in tokens], perplexity, label=name)
        before += tokens[-1]
    axes.set(xlabel="million tokens read", ylabel="held-out perplexity", yscale="log")
    axes.set_yticks(ticks := [50, 60, 70, 80, 100, 150, 200, 300, 400], map(str, ticks))
    axes.minorticks_off()
    axes.legend()
    axes.grid()
    figure.savefig(arguments.picture)


if __name__ == "__main__":
    main()
