"""The model card of a preset: what a biLM is, what it was trained on, how well it predicts."""

import json


def model_card(name, config, vocabulary, recipe, facts, scores, data="", extra="") -> str:
    """Return a model card in Markdown.

    Args:
        name: Of the preset.
        config: The ``BiLMConfig``.
        vocabulary: List of tokens.
        recipe: The settings of the run, a dict.
        facts: ``step``, ``tokens`` and ``seconds`` of the run.
        scores: Results of ``Scorer.perplexity`` by the name of the text.
        data: What it was trained on: sources, licence, credit.
        extra: Further sections.
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
        f"{facts['tokens']:,} tokens in {facts['step']:,} steps and {facts['seconds'] / 60:.0f} "
        "minutes. The recipe:",
        "",
        "```json",
        json.dumps(recipe, indent=2),
        "```",
        "",
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
    return "\n".join(lines) + "\n" + (f"\n{extra.strip()}\n" if extra.strip() else "")
