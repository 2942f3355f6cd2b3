"""Draw the scores of each layer for word senses and parts of speech in one picture.

The input is the output of two scripts:

    python examples/wsd.py --json ... > wsd.json
    python examples/parts_of_speech.py --json ... > pos.json
    python examples/experiments/layers_plot.py wsd.json pos.json layers.png
"""

import argparse
import json
import pathlib


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("senses", type=pathlib.Path, help="output of wsd.py --json")
    parser.add_argument("tags", type=pathlib.Path, help="output of parts_of_speech.py --json")
    parser.add_argument("picture", type=pathlib.Path, help=".png to write")
    arguments = parser.parse_args()

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use(pathlib.Path(__file__).parents[2] / "docs" / "pictures.mplstyle")
    senses = json.loads(arguments.senses.read_text("utf-8"))["f1"]["ALL"]
    tags = json.loads(arguments.tags.read_text("utf-8"))["accuracy"]
    rows = [row for row in tags if row.startswith("layer")]
    figure, left = plt.subplots(figsize=(7, 4.5))
    right = left.twinx()
    [line] = left.plot(rows, [senses[row] for row in rows], "o-", color="C0")
    frequent = left.axhline(senses["most frequent"], color="C0", linestyle=":")
    accuracies, deviations = ([tags[row][key] for row in rows] for key in ("mean", "deviation"))
    bars = right.errorbar(rows, accuracies, deviations, fmt="s-", color="C1", capsize=4)
    left.set_ylabel("word senses: F1 on ALL")
    right.set_ylabel("parts of speech: accuracy of a linear probe")
    labels = ["word senses", "most frequent sense", "parts of speech"]
    left.legend([line, frequent, bars], labels, loc="lower right")
    figure.tight_layout()
    figure.savefig(arguments.picture)


if __name__ == "__main__":
    main()
