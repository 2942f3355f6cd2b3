"""The model card of a preset: what a biLM is, what it was trained on, how well it predicts."""

import csv
import json


def model_card(name, config, vocabulary, recipe, facts, scores, data="") -> str:
    """Return a model card in Markdown.

    Args:
        name: Of the preset.
        config: The ``BiLMConfig``.
        vocabulary: List of tokens.
        recipe: The settings of the run, a dict.
        facts: ``step``, ``tokens`` and ``seconds`` of the run; ``init_from``, the preset that
            was fine-tuned, or None; ``rounding``, the significant bits of weights and softmax,
            the number of held-out sentences and their perplexity before and after, or None.
        scores: Results of ``Scorer.perplexity`` by the name of the text.
        data: What it was trained on: sources, licence, credit.
    """
    filters = ", ".join(f"{count} of width {width}" for width, count in config.filters)
    lines = [
        f"# {name}",
        "",
        "A bidirectional language model (biLM) for ELMo, trained with keras-elmo.",
        "",
        "```python",
        "import keras_elmo",
        "",
        f'layer = keras_elmo.ElmoLayer.from_preset("{name}")',
        "```",
        "",
        "## Sizes",
        "",
        f"- {config.n_layers} layers of {config.lstm_dim} LSTM cells, projected to "
        f"{config.projection_dim}, in each direction: {config.n_layers + 1} layer "
        f"representations of width {2 * config.projection_dim}",
        f"- character filters: {filters}; {config.n_highway} highway",
        f"- a softmax over {len(vocabulary):,} tokens",
        "",
        "## Data",
        "",
        data.strip() or "Not stated.",
        "",
        "## Training",
        "",
        *([f"Fine-tuned from `{facts['init_from']}`.", ""] if facts["init_from"] else []),
        f"{facts['tokens']:,} tokens in {facts['step']:,} steps and {facts['seconds'] / 60:.0f} "
        "minutes. The recipe:",
        "",
        "```json",
        json.dumps(recipe, indent=2),
        "```",
        "",
        "![loss and held-out perplexity over tokens](curve.png)",
        "",
        "`log.csv` has the same in figures, a row a checkpoint.",
        "",
        *(_of_the_average(*facts["average"]) if facts["average"] else []),
        "## Perplexity",
        "",
        "With the full softmax, of whole sentences from a zero state; forward predicts `</S>` and",
        "backward `<S>` too. Tokens outside the vocabulary are read by their own characters and",
        "count as `<UNK>`.",
        "",
        "| text | tokens | OOV | forward | backward | joint |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {text} | {s['tokens']:,} | {s['oov_share']:.1%} | {s['forward']:.1f} | "
        f"{s['backward']:.1f} | {s['perplexity']:.1f} |"
        for text, s in scores.items()
    ]
    if facts["rounding"]:
        bits, softmax_bits, count, before, after = facts["rounding"]
        lines += [
            "",
            f"The weights are rounded to {bits} significant bits, those of the softmax to "
            f"{softmax_bits}. That",
            f"changes the perplexity of {count} held-out sentences from {before:.3f} to "
            f"{after:.3f}.",
        ]
    return "\n".join(lines) + "\n"


def _of_the_average(preset, share):
    return [
        f"The weights are an average: {1 - share:g} of what the run ended with, and {share:g}",
        f"of those of `{preset}` (Wortsman et al., 2022).",
        "",
    ]


def draw_curve(log, picture) -> None:
    """Draw the loss and the held-out perplexity of a run over its tokens.

    Args:
        log: Path of the run's ``log.csv``.
        picture: Path of the PNG to write.

    Raises:
        ImportError: If matplotlib is missing.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "The training curve needs matplotlib: pip install 'keras-elmo[pretrain]'"
        ) from error
    with open(log, newline="") as file:
        rows = list(csv.DictReader(file))
    millions = [int(row["tokens"]) / 1e6 for row in rows]
    figure = Figure(figsize=(8, 4))
    axes = figure.add_subplot()
    axes.plot(millions, [float(row["loss"]) for row in rows], "C0", label="training loss")
    axes.set_xlabel("million tokens")
    axes.set_ylabel("training loss, nats")
    measured = [row for row in rows if row["perplexity"]]
    if measured:
        right = axes.twinx()
        tokens, scores = zip(*((row["tokens"], row["perplexity"]) for row in measured))
        right.plot([int(n) / 1e6 for n in tokens], list(map(float, scores)), "C1")
        right.set_ylabel("held-out perplexity (full softmax)", color="C1")
        right.set_yscale("log")
    figure.tight_layout()
    figure.savefig(picture, format="png", dpi=100)
