"""Export the last checkpoint of a run as a preset with a model card."""

import dataclasses
import importlib.util
import os
import pathlib
from collections.abc import Iterable

from keras_elmo.pretraining.language_model_files import (
    BITS,
    average_weights,
    round_weights,
    write_language_model,
)
from keras_elmo.pretraining.model_card import draw_curve, model_card
from keras_elmo.pretraining.run_folder import RunFolder, read_tokenizer
from keras_elmo.pretraining.scores import Scorer
from keras_elmo.pretraining.text_files import read_sentences
from keras_elmo.pretraining.train import read_run
from keras_elmo.utils.files import atomic_write, local_path, made_folder

# Held-out sentences that measure the effect of rounding the weights.
_ROUNDING_SENTENCES = 500


def export_run(
    folder: str | pathlib.Path,
    output: str | os.PathLike,
    heldout: str | os.PathLike | Iterable[str | os.PathLike] = (),
    data: str = "",
    bits: tuple[int, int] = BITS,
    average: tuple[str, float] | None = None,
) -> dict:
    """Write the last checkpoint of a run as a preset, with model card, log and curve.

    Args:
        folder: str or path. Folder of the run.
        output: str or path. Directory of the preset; made if it does not exist.
        heldout: str, path or list of them. Tokenised texts, one sentence per line, to measure
            the perplexity on.
        data: str. Markdown on sources, licence and credit, for the model card.
        bits: pair of int. Significant bits of the stored biLM and softmax, 2 to 23.
        average: pair or None. A preset, usually the one that the run began with, and the share
            of its weights in an average with the run's weights. The average recovers part of
            what the run has unlearned (Wortsman et al., 2022).

    Returns:
        dict. Results of ``Scorer.perplexity`` by the name of the text.

    Raises:
        FileNotFoundError: If the run or a text does not exist.
        ValueError: If a text is empty, ``bits`` is out of range, or the preset of ``average``
            has other sizes.
        ImportError: If matplotlib is missing.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("The training curve needs matplotlib: pip install 'keras-elmo[pretrain]'")
    if not all(2 <= n <= 23 for n in bits):
        raise ValueError(f"export_run expects bits from 2 to 23. Received: bits={tuple(bits)}")
    output = local_path(output)
    texts = {}
    heldout = [heldout] if isinstance(heldout, str | os.PathLike) else heldout
    for file in map(local_path, heldout):
        sentences = [sentence for sentence in read_sentences(file) if sentence]
        if not sentences:
            raise ValueError(f"heldout expects tokenised sentences. Received: none in {file}")
        texts[str(file) if file.name in texts else file.name] = sentences
    run = RunFolder(folder)
    model, vocabulary, facts = read_run(folder)
    facts["average"] = average
    if average:
        average_weights(model, vocabulary, *average)
    scorer = Scorer(model, vocabulary)
    few = next(iter(texts.values()), [])[:_ROUNDING_SENTENCES]
    before = scorer.perplexity(few)["perplexity"] if few else None
    round_weights(model, bits)
    after = scorer.perplexity(few)["perplexity"] if few else None
    facts["rounding"] = few and (*bits, len(few), before, after)
    scores = {name: scorer.perplexity(sentences) for name, sentences in texts.items()}
    # A resumed run may have changed these settings after the checkpoint.
    recipe = dataclasses.asdict(run.read_settings()[1]) | facts.get("settings", {})
    card = model_card(output.resolve().name, model.config, vocabulary, recipe, facts, scores, data)
    paths = output / "curve.png", output / "log.csv"
    with made_folder(output), atomic_write(*paths) as (picture, log):
        run.copy_log(facts["step"], log)
        draw_curve(log, picture)
        write_language_model(output, model, vocabulary, card, bits, read_tokenizer(run.path))
    return scores
