"""Export the last checkpoint of a run as a preset with a model card."""

import dataclasses
import json
import pathlib
import warnings
from collections.abc import Iterable
from typing import Any

from keras_elmo.pretraining.language_model import BiLanguageModel
from keras_elmo.pretraining.language_model_files import (
    BITS,
    check_bits,
    round_weights,
    write_language_model,
)
from keras_elmo.pretraining.run_folder import RunFolder
from keras_elmo.pretraining.scores import Scorer
from keras_elmo.pretraining.train import read_run
from keras_elmo.text_input import read_sentences
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.files import PathLike, check_new_directory, local_path

# Held-out sentences that measure the effect of rounding the weights.
_ROUNDING_SENTENCES = 500


def export_run(
    folder: PathLike,
    output: PathLike,
    heldout: PathLike | Iterable[PathLike] = (),
    data: str = "",
    license: str | None = None,
    language: str | None = None,
    bits: tuple[int, int] = BITS,
    overwrite: bool = False,
) -> dict:
    """Write the last checkpoint of a run as a preset, with model card and log.

    Args:
        folder: str or path. Folder of the run.
        output: str or path. A new or empty directory, unless ``overwrite`` is True.
        heldout: str, path or list of them. Tokenised texts, one sentence per line, to measure
            the perplexity on.
        data: str. Markdown on sources, licence and credit, for the model card.
        license: str or None. Licence of the weights, as the Hugging Face Hub writes it, for
            example cc-by-sa-4.0.
        language: str or None. Language of the text as an ISO 639 code, for example en.
        bits: pair of int. Significant bits of the stored biLM and softmax, 2 to 23. A softmax
            of 8 bits gets a scale for each token.
        overwrite: bool. Whether to replace the files of a preset that exists.

    Returns:
        dict. Results of ``Scorer.perplexity`` by the name of the text.

    Raises:
        FileNotFoundError: If the run or a text does not exist.
        ValueError: If the directory has files, a text is empty, or ``bits`` is out of range.
    """
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
            raise invalid("heldout expects tokenised sentences", f"none in {file}")
        texts[str(file) if file.name in texts else file.name] = sentences
    if license is None:
        warnings.warn(
            "The model card will name no licence, so nobody may use the weights. Pass license "
            "(--license)",
            stacklevel=2,
        )
    run = RunFolder(folder)
    model, vocabulary, facts = read_run(folder)
    scorer = Scorer(model, vocabulary)
    few = next(iter(texts.values()), [])[:_ROUNDING_SENTENCES]
    before = scorer.perplexity(few)["perplexity"] if few else None
    round_weights(model, bits)
    after = scorer.perplexity(few)["perplexity"] if few else None
    rounding = (*bits, len(few), before, after) if few else None
    scores = {name: scorer.perplexity(sentences) for name, sentences in texts.items()}
    recipe = dataclasses.asdict(run.read_settings()[1])
    front = {"license": license, "language": language}
    name = output.resolve().name
    card = _front_matter(front) + _model_card(name, model, recipe, facts, rounding, scores, data)
    write_language_model(output, model, vocabulary, card, bits, run.read_tokenizer())
    (output / "log.csv").write_text(run.read_log(facts["step"]), "utf-8")
    return scores


def _front_matter(facts: dict[str, Any]) -> str:
    """Return the YAML at the start of a model card, which the Hugging Face Hub reads."""
    facts = {"library_name": "keras", **facts, "pipeline_tag": "feature-extraction"}
    lines = [f"{name}: {value}" for name, value in facts.items() if value is not None]
    return "\n".join(["---", *lines, "tags:", "- elmo", "- keras-elmo", "---", "", ""])


def _model_card(
    name: str,
    model: BiLanguageModel,
    recipe: dict,
    facts: dict,
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
    rounding_text = ""
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

`log.csv` contains the loss and the held-out perplexity, one row per checkpoint.

## Perplexity

Full softmax, whole sentences, zero initial state. Forward also predicts `</S>`, backward
`<S>`. The biLM reads tokens outside the vocabulary by their characters; they are scored
as `<UNK>`.

| text | tokens | OOV | forward | backward | joint |
|---|---|---|---|---|---|
{rows}{rounding_text}"""
