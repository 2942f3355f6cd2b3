"""Write the model card of a preset, and draw the training curve."""

import csv
import json
import pathlib

from keras_elmo.config import BiLMConfig


def model_card(
    name: str,
    config: BiLMConfig,
    vocabulary: list[str],
    recipe: dict,
    facts: dict,
    scores: dict,
    data: str = "",
) -> str:
    """Return a model card in Markdown.

    Args:
        name: str. Name of the preset.
        config: BiLMConfig. Sizes of the biLM.
        vocabulary: list of str. Tokens of the softmax.
        recipe: dict. Settings of the run.
        facts: dict. Facts of ``read_run``; ``rounding``, the significant bits of biLM and softmax,
            the number of held-out sentences and their perplexity before and after, or None;
            ``average``, a preset and its share, or None.
        scores: dict. Results of ``Scorer.perplexity`` by the name of the text.
        data: str. Markdown on sources, licence and credit.
    """
    filters = ", ".join(f"{count} of width {width}" for width, count in config.filters)
    average = rounding = ""
    if facts["average"]:
        preset, share = facts["average"]
        average = f"""
The weights are an average: {1 - share:g} of the end of the run, {share:g} of `{preset}`
(Wortsman et al., 2022).
"""
    if facts["rounding"]:
        bits, softmax_bits, count, before, after = facts["rounding"]
        rounding = f"""
The weights are rounded to {bits} significant bits, the softmax to {softmax_bits}.
This changes the perplexity of {count} held-out sentences from {before:.3f} to {after:.3f}.
"""
    rows = "".join(
        f"| {text} | {s['tokens']:,} | {s['oov_share']:.1%} | {s['forward']:.1f} | "
        f"{s['backward']:.1f} | {s['perplexity']:.1f} |\n"
        for text, s in scores.items()
    )
    origin = f"Fine-tuned from `{facts['init_from']}`.\n\n" if facts["init_from"] else ""
    return f"""# {name}

A bidirectional language model (biLM) for ELMo, trained with keras-elmo.

```python
import keras_elmo

layer = keras_elmo.ElmoLayer.from_preset("{name}")
```

## Sizes

- {config.n_layers} layers of {config.lstm_dim} LSTM cells, projected to \
{config.projection_dim}, in each direction: {config.n_layers + 1} layer \
representations of width {2 * config.projection_dim}
- character filters: {filters}; {config.n_highway} highway
- a softmax over {len(vocabulary):,} tokens

## Data

{data.strip() or "Not stated."}

## Training

{origin}{facts["tokens"]:,} tokens in {facts["step"]:,} steps and {facts["seconds"] / 60:.0f} \
minutes. The recipe:

```json
{json.dumps(recipe, indent=2)}
```

![loss and held-out perplexity over tokens](curve.png)

`log.csv` has the figures, one row per checkpoint.
{average}
## Perplexity

Full softmax, whole sentences, zero initial state. Forward also predicts `</S>`, backward
`<S>`. The biLM reads tokens outside the vocabulary by their characters; they are scored
as `<UNK>`.

| text | tokens | OOV | forward | backward | joint |
|---|---|---|---|---|---|
{rows}{rounding}"""


def draw_curve(log: str | pathlib.Path, picture: str | pathlib.Path) -> None:
    """Draw the loss and the held-out perplexity in a ``log.csv`` over the tokens, as a PNG."""
    from matplotlib.figure import Figure

    with open(log, newline="", encoding="utf-8") as file:
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
