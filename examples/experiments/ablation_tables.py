"""Turn the runs of ablations.py into tables and pictures."""

import pathlib

import matplotlib
import numpy as np
from several_seeds import mean_and_spread

matplotlib.use("Agg")
import matplotlib.pyplot as plt

plt.style.use(pathlib.Path(__file__).parents[2] / "docs" / "pictures.mplstyle")

SPLITS = "dev", "test"


def percent(share):
    return f"{100 * share:g}%"


def summarise(tables):
    """Return the tables, with the mean and standard deviation of the runs for each row."""
    return {
        name: {
            row: {
                **{split: mean_and_spread([run[split] for run in found]) for split in SPLITS},
                "runs": len(found),
                "epochs": [run["epochs"] for run in found],
                "dev_by_epoch": [run["dev_by_epoch"] for run in found],
                "seconds_per_epoch": float(np.mean([run["seconds_per_epoch"] for run in found])),
                "layer_weights": {
                    place: [
                        mean_and_spread(of_layer)
                        for of_layer in zip(*(run["layer_weights"][place] for run in found))
                    ]
                    for place in found[0]["layer_weights"]
                },
            }
            for row, found in rows.items()
        }
        for name, rows in tables.items()
    }


def epochs_to_pass(rows):
    """Return for each seed the epoch of the baseline's best dev score, and when +ELMo passes it.

    The second number is the first epoch in which +ELMo scores higher, None if it never does.
    """
    passed = []
    for baseline, elmo in zip(*(rows[name]["dev_by_epoch"] for name in ("baseline", "+ELMo"))):
        best = max(baseline)
        above = (epoch for epoch, score in enumerate(elmo, start=1) if score > best)
        passed.append((1 + baseline.index(best), next(above, None)))
    return passed


def to_markdown(summary, score):
    """Return the tables as Markdown; a gain is over the last baseline above the row."""
    lines = []
    for name, rows in summary.items():
        lines += [f"### {name}", "", f"| {name} | dev {score} | test {score} | gain | runs |"]
        lines += ["|---|---|---|---|---|"]
        baseline = None
        for row, x in rows.items():
            texts = [
                f"{100 * x[split]['mean']:.2f} ± {100 * x[split]['standard_deviation']:.2f}"
                for split in SPLITS
            ]
            mean, gain = x["test"]["mean"], ""
            if row.endswith("baseline"):
                baseline = mean
            elif baseline is not None:
                gain = f"{100 * (mean - baseline):+.2f}"
            lines.append(f"| {row} | {' | '.join(texts)} | {gain} | {x['runs']} |")
        lines.append("")
        for row, x in rows.items() if name == "weights" else ():
            for place, weights in x["layer_weights"].items():
                text = ", ".join(
                    f"{weight['mean']:.3f} ± {weight['standard_deviation']:.3f}"
                    for weight in weights
                )
                lines += [f"Layer weights at the {place} ({row}), from layer 0: {text}", ""]
        for best, above in epochs_to_pass(rows) if name == "curves" else ():
            when = f"in epoch {above}" if above else "in no epoch"
            lines += [f"+ELMo passes the baseline's best, of epoch {best}, {when}.", ""]
    return "\n".join(lines)


def plot_sizes(rows, shares, score, path):
    """Draw the score over the share of the training data (figure 1)."""
    figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
    for name in ("baseline", "+ELMo"):
        scores = [rows[f"{percent(share)}, {name}"]["test"] for share in shares]
        mean, spread = ([100 * x[key] for x in scores] for key in ("mean", "standard_deviation"))
        axes.errorbar([100 * share for share in shares], mean, spread, marker="o", label=name)
    axes.set(xscale="log", xlabel="training data, %", ylabel=f"test {score}, %")
    axes.set_xticks([100 * share for share in shares], map(percent, shares))
    axes.legend()
    figure.savefig(path)
    plt.close(figure)


def plot_weights(rows, path):
    """Draw the softmax weights of the layers, one row for each mix, as a heat map (figure 2).

    Args:
        rows: dict from the name of a mix to the weights of its layers.
        path: path. Picture to write.
    """
    n_layers = len(next(iter(rows.values())))
    figure, axes = plt.subplots(figsize=(5.5, 1.3 + 0.45 * len(rows)), layout="constrained")
    picture = axes.imshow(list(rows.values()), vmin=0, vmax=1, cmap="Blues", aspect="auto")
    for (y, x), weight in np.ndenumerate(list(rows.values())):
        color = "white" if weight > 0.6 else "black"
        axes.text(x, y, f"{weight:.2f}", color=color, ha="center", va="center")
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_xticks(range(n_layers), [f"layer {i}" for i in range(n_layers)])
    figure.colorbar(picture, label="weight")
    figure.savefig(path)
    plt.close(figure)


def plot_curves(rows, score, path):
    """Draw the dev score by epoch, with one line for each seed."""
    figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
    for (name, x), colour in zip(rows.items(), ("C0", "C1")):
        for number, scores in enumerate(x["dev_by_epoch"]):
            epochs = range(1, 1 + len(scores))
            label = None if number else name
            axes.plot(epochs, [100 * y for y in scores], color=colour, label=label)
    best = max(max(scores) for scores in rows["baseline"]["dev_by_epoch"])
    axes.axhline(100 * best, color="C0", linestyle=":")
    axes.set(xlabel="epoch", ylabel=f"dev {score}, %")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()
    figure.savefig(path)
    plt.close(figure)
