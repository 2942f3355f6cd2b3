"""A run's last checkpoint as a preset with a model card."""

import dataclasses
import importlib.util
import os
import pathlib

from keras_elmo.pretraining.language_model_files import (
    BITS,
    average_weights,
    round_weights,
    write_language_model,
)
from keras_elmo.pretraining.model_card import draw_curve, model_card
from keras_elmo.pretraining.run_folder import RunFolder
from keras_elmo.pretraining.scores import Scorer
from keras_elmo.pretraining.text_files import read_sentences
from keras_elmo.pretraining.train import read_run
from keras_elmo.utils.files import atomic_write

# Held-out sentences on which the rounding of the weights is measured.
_ROUNDING_SENTENCES = 500


def export_run(folder, output, heldout=(), data="", bits=BITS, average=None) -> dict:
    """Write a run's last checkpoint as a preset: its files, a model card, the log and its curve.

    Args:
        folder: The run's folder.
        output: The preset's directory; made if it does not exist.
        heldout: Path or paths of tokenised texts, a sentence a line, to measure perplexity on.
        data: Markdown on sources, licence and credit, for the card.
        bits: Significant bits to keep of the biLM's weights and of the softmax's, 2 to 23.
        average: Pair of a preset, as a rule what the run began with, and the share of its
            weights in the average that is written: some of what the run has unlearned comes
            back (Wortsman et al., 2022).

    Returns:
        Results of ``Scorer.perplexity`` by the name of the text.

    Raises:
        FileNotFoundError: If there is no such run or text.
        ValueError: If a text is empty, ``bits`` not as above, or the preset of ``average`` of
            other sizes.
        ImportError: If matplotlib, for the curve, is missing.
    """
    if importlib.util.find_spec("matplotlib") is None:  # before all the scoring
        raise ImportError("The training curve needs matplotlib: pip install 'keras-elmo[pretrain]'")
    if not all(2 <= n <= 23 for n in bits):
        raise ValueError(f"export_run expects bits from 2 to 23. Received: bits={tuple(bits)}")
    output = pathlib.Path(output)
    texts = {}
    heldout = [heldout] if isinstance(heldout, str | os.PathLike) else heldout
    for file in map(pathlib.Path, heldout):
        sentences = [sentence for sentence in read_sentences(file) if sentence]
        if not sentences:
            raise ValueError(f"heldout expects tokenised sentences. Received: none in {file}")
        texts[str(file) if file.name in texts else file.name] = sentences
    run = RunFolder(folder)
    model, vocabulary, facts = read_run(folder)
    if average:
        average_weights(model, vocabulary, *average)
    facts["average"] = average
    scorer = Scorer(model, vocabulary)
    few = next(iter(texts.values()), [])[:_ROUNDING_SENTENCES]
    before = scorer.perplexity(few)["perplexity"] if few else None
    round_weights(model, bits)
    after = scorer.perplexity(few)["perplexity"] if few else None
    facts["rounding"] = few and (*bits, len(few), before, after)
    scores = {name: scorer.perplexity(sentences) for name, sentences in texts.items()}
    # What a resumed run may have changed since is not what the checkpoint was trained with.
    recipe = dataclasses.asdict(run.read_recipe()) | facts.get("settings", {})
    card = model_card(output.resolve().name, model.config, vocabulary, recipe, facts, scores, data)
    output.mkdir(parents=True, exist_ok=True)
    with atomic_write(output / "curve.png", output / "log.csv") as (picture, log):
        run.copy_log(facts["step"], log)
        draw_curve(log, picture)
    write_language_model(output, model, vocabulary, card, bits)
    return scores
