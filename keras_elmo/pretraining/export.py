"""Export the last checkpoint of a run as a preset with a model card."""

import dataclasses
import json
import pathlib
import tempfile
from collections.abc import Iterable

from keras_elmo.pretraining.language_model_files import (
    read_language_model,
    tokenizer_of,
    write_language_model,
)
from keras_elmo.pretraining.run_folder import RunFolder, write_log
from keras_elmo.pretraining.scores import Scorer
from keras_elmo.pretraining.train import read_run
from keras_elmo.text_input import read_sentences
from keras_elmo.utils.files import PathLike, check_new_directory, local_path


def export_run(
    folder: PathLike,
    output: PathLike,
    heldout: PathLike | Iterable[PathLike] = (),
    data: str = "",
    license: str | None = None,
    language: str | None = None,
    bits: int = 16,
    overwrite: bool = False,
) -> dict:
    """Write the last checkpoint of a run as a preset, with model card and log.

    Args:
        folder: str or path. Folder of the run.
        output: str or path. A new or empty directory, unless ``overwrite`` is True.
        heldout: str, path or list of them. Tokenised texts, one sentence per line, to measure
            the perplexity of the preset on.
        data: str. Markdown on sources, licence and credit, for the model card.
        license: str or None. Licence of the weights, as the Hugging Face Hub writes it, for
            example cc-by-sa-4.0. Without one, nobody may use them.
        language: str or None. Language of the text as an ISO 639 code, for example en.
        bits: int. Significant bits of the stored biLM, 2 to 23.
        overwrite: bool. Whether to replace the files of a preset that exists.

    Returns:
        dict. Results of ``Scorer.perplexity`` by the name of the text.

    Raises:
        FileNotFoundError: If the run or a text does not exist.
        ValueError: If the directory has files, a text is empty, or ``bits`` is out of range.
    """
    output = local_path(output)
    if not overwrite or RunFolder(output).settings.exists():  # never into a run
        remedy = "Choose another directory, or pass overwrite=True (--force)"
        check_new_directory(output, "export", remedy)
    texts = {}
    for file in map(local_path, [heldout] if isinstance(heldout, PathLike) else heldout):
        texts[str(file) if file.name in texts else file.name] = read_sentences(file)
    run = RunFolder(folder)
    model, vocabulary, facts = read_run(folder)
    with tempfile.TemporaryDirectory() as temporary:
        write_language_model(temporary, model, vocabulary, bits=bits)
        model, _ = read_language_model(temporary)  # the weights are rounded
    scorer = Scorer(model, vocabulary)
    scores = {name: scorer.perplexity(sentences) for name, sentences in texts.items()}
    front = {"library_name": "keras", "license": license, "language": language}
    card = _model_card(output.resolve().name, run, facts, front, data, scores)
    write_language_model(output, model, vocabulary, card, bits, tokenizer_of(run.path))
    write_log(output / "log.csv", facts["log"])
    return scores


def _model_card(
    name: str, run: RunFolder, facts: dict, front: dict, data: str, scores: dict
) -> str:
    """Return a model card in Markdown, after the YAML that the Hugging Face Hub reads."""
    config, recipe, sources = run.read_settings()
    recipe_text = json.dumps(dataclasses.asdict(recipe), indent=2)
    filters = ", ".join(f"{count} of width {width}" for width, count in config.filters)
    metadata = "".join(f"{key}: {value}\n" for key, value in front.items() if value)
    rows = "".join(
        f"| {text} | {s['tokens']:,} | {s['oov_share']:.1%} | {s['forward']:.1f} | "
        f"{s['backward']:.1f} | {s['perplexity']:.1f} |\n"
        for text, s in scores.items()
    )
    origin, start = "", sources["init_from"]
    if start:  # a card does not show the folders of a machine
        preset = start if "://" in start else pathlib.Path(start).name
        origin = f"Fine-tuned from `{preset}`. "
    return f"""---
{metadata}pipeline_tag: feature-extraction
tags:
- elmo
- keras-elmo
---

# {name}

A bidirectional language model (biLM) for ELMo, trained with keras-elmo.

```python
import keras_elmo

embedder = keras_elmo.Embedder("{name}")  # gives arrays from lists of tokens
layer = keras_elmo.ElmoLayer.from_preset("{name}")  # for a Keras model, frozen
```

Each direction has {config.n_layers} layers of {config.lstm_dim} LSTM cells, projected to \
{config.projection_dim}, so a layer representation has the width {2 * config.projection_dim}. \
Character filters: {filters}. Highway layers: {config.n_highway}.

## Data

{data.strip() or "Not stated."}

## Training

{origin}{facts["tokens"]:,} tokens in {facts["step"]:,} steps and {facts["seconds"] / 60:.0f} \
minutes. `log.csv` contains the loss and the held-out perplexity. The recipe:

```json
{recipe_text}
```

## Perplexity

Full softmax, whole sentences. Tokens outside the vocabulary are read by their characters and
scored as `<UNK>`. Forward also predicts `</S>`, backward `<S>`.

| text | tokens | OOV | forward | backward | joint |
|---|---|---|---|---|---|
{rows}"""
