"""Export the last checkpoint of a run as a preset with a model card."""

import csv
import dataclasses
import importlib.util
import json
import pathlib
from collections.abc import Iterable

from keras_elmo.pretraining.language_model import BiLanguageModel
from keras_elmo.pretraining.language_model_files import (
    BITS,
    average_weights,
    check_bits,
    round_weights,
    write_language_model,
)
from keras_elmo.pretraining.run_folder import RunFolder, read_tokenizer
from keras_elmo.pretraining.scores import Scorer
from keras_elmo.pretraining.train import read_run
from keras_elmo.text_input import read_sentences
from keras_elmo.utils.files import (
    PathLike,
    atomic_write,
    check_new_directory,
    local_path,
)

# Held-out sentences that measure the effect of rounding the weights.
_ROUNDING_SENTENCES = 500


def export_run(
    folder: PathLike,
    output: PathLike,
    heldout: PathLike | Iterable[PathLike] = (),
    data: str = "",
    bits: tuple[int, int] = BITS,
    average: tuple[str, float] | None = None,
    overwrite: bool = False,
) -> dict:
    """Write the last checkpoint of a run as a preset, with model card, log and curve.

    Args:
        folder: str or path. Folder of the run.
        output: str or path. A new or empty directory, unless ``overwrite`` is True.
        heldout: str, path or list of them. Tokenised texts, one sentence per line, to measure
            the perplexity on.
        data: str. Markdown on sources, licence and credit, for the model card.
        bits: pair of int. Significant bits of the stored biLM and softmax, 2 to 23.
        average: pair or None. A preset, usually the one that the run began with, and the share
            of its weights in an average with the run's weights. The average recovers part of
            what the run has unlearned (Wortsman et al., 2022).
        overwrite: bool. Whether to replace the files of a preset that exists.

    Returns:
        dict. Results of ``Scorer.perplexity`` by the name of the text.

    Raises:
        FileNotFoundError: If the run or a text does not exist.
        ValueError: If the directory has files, a text is empty, ``bits`` is out of range, or
            the preset of ``average`` has other sizes.
        ImportError: If matplotlib is missing.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("The training curve needs matplotlib: pip install 'keras-elmo[pretrain]'")
    check_bits(bits)
    output = local_path(output)
    if not overwrite:
        remedy = "Choose another directory, or pass overwrite=True (--force)"
        check_new_directory(output, "export", remedy)
    texts = {}
    heldout = [heldout] if isinstance(heldout, PathLike) else heldout
    for file in map(local_path, heldout):
        sentences = read_sentences(file)
        if not sentences:
            raise ValueError(f"heldout expects tokenised sentences. Received: none in {file}")
        texts[str(file) if file.name in texts else file.name] = sentences
    run = RunFolder(folder)
    model, vocabulary, facts = read_run(folder)
    if average:
        average_weights(model, vocabulary, *average)
    scorer = Scorer(model, vocabulary)
    few = next(iter(texts.values()), [])[:_ROUNDING_SENTENCES]
    before = scorer.perplexity(few)["perplexity"] if few else None
    round_weights(model, bits)
    after = scorer.perplexity(few)["perplexity"] if few else None
    rounding = (*bits, len(few), before, after) if few else None
    scores = {name: scorer.perplexity(sentences) for name, sentences in texts.items()}
    # A resumed run may have changed these settings after the checkpoint.
    recipe = dataclasses.asdict(run.read_settings()[1]) | facts.get("settings", {})
    name = output.resolve().name
    card = _model_card(name, model, recipe, facts, average, rounding, scores, data)
    output.mkdir(parents=True, exist_ok=True)
    with atomic_write(output / "log.csv") as log, atomic_write(output / "curve.png") as picture:
        run.copy_log(facts["step"], log)
        _draw_curve(log, picture)
        write_language_model(output, model, vocabulary, card, bits, read_tokenizer(run.path))
    return scores


def _model_card(
    name: str,
    model: BiLanguageModel,
    recipe: dict,
    facts: dict,
    average: tuple[str, float] | None,
    rounding: tuple | None,
    scores: dict,
    data: str,
) -> str:
    """Return a model card in Markdown.

    ``rounding`` has the significant bits of biLM and softmax, the number of held-out sentences
    and their perplexity before and after.
    """
    config = model.config
    filters = ", ".join(f"{count} of width {width}" for width, count in config.filters)
    average_text = rounding_text = ""
    if average:
        preset, share = average
        average_text = f"""
The weights are an average: {1 - share:g} of the end of the run, {share:g} of `{preset}`
(Wortsman et al., 2022).
"""
    if rounding:
        bits, softmax_bits, count, before, after = rounding
        rounding_text = f"""
The weights are rounded to {bits} significant bits, the softmax to {softmax_bits}.
This changes the perplexity of {count} held-out sentences from {before:.3f} to {after:.3f}.
"""
    rows = "".join(
        f"| {text} | {s['tokens']:,} | {s['oov_share']:.1%} | {s['forward']:.1f} | "
        f"{s['backward']:.1f} | {s['perplexity']:.1f} |\n"
        for text, s in scores.items()
    )
    origin, start = "", facts["init_from"]
    if start:  # a card does not show the folders of a machine
        preset = pathlib.Path(start).name if pathlib.Path(start).is_absolute() else start
        origin = f"Fine-tuned from `{preset}`.\n\n"
    return f"""# {name}

A bidirectional language model (biLM) for ELMo, trained with keras-elmo.

```python
import keras_elmo

embedder = keras_elmo.Embedder("{name}")  # gives arrays from lists of tokens
layer = keras_elmo.ElmoLayer.from_preset("{name}")  # for a Keras model, frozen
```

## Sizes

- {config.n_layers} layers of {config.lstm_dim} LSTM cells, projected to \
{config.projection_dim}, in each direction: {config.n_layers + 1} layer \
representations of width {2 * config.projection_dim}
- character filters: {filters}; {config.n_highway} highway
- a softmax over {model.vocabulary_size:,} tokens

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
{average_text}
## Perplexity

Full softmax, whole sentences, zero initial state. Forward also predicts `</S>`, backward
`<S>`. The biLM reads tokens outside the vocabulary by their characters; they are scored
as `<UNK>`.

| text | tokens | OOV | forward | backward | joint |
|---|---|---|---|---|---|
{rows}{rounding_text}"""


def _draw_curve(log: PathLike, picture: PathLike) -> None:
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
