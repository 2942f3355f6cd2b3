"""Run a task script with several seeds: scores with mean and deviation, and the biLM's digest."""

import functools
import json

import numpy as np

import keras_elmo


@functools.lru_cache
def fingerprint(preset):
    """Return a digest of the weights of a biLM, because weights can change under one name."""
    return keras_elmo.ElmoLayer.from_preset(preset).fingerprint()


def run_seeds(settings, train_and_score, score):
    """Train with each seed and print the scores on dev and test.

    Args:
        settings: namespace. ``seeds`` are the seeds; ``json`` prints one JSON object only.
        train_and_score: function. Takes settings and seed, and returns a dict of ``dev``,
            ``test``, ``layer_weights`` by place, and more, all of which JSON can write.
        score: str. Name of the score.
    """
    runs = [train_and_score(settings, seed) for seed in settings.seeds]
    summary = {split: mean_and_spread([run[split] for run in runs]) for split in ("dev", "test")}
    if settings.json:
        print(json.dumps({"settings": vars(settings), **summary, "runs": runs}, default=str))
        return
    for seed, run in zip(settings.seeds, runs):
        weights = {place: np.round(x, 3).tolist() for place, x in run["layer_weights"].items()}
        print(f"seed {seed}: dev {run['dev']:.4f} test {run['test']:.4f} layer weights {weights}")
    for split, x in summary.items():
        spread = f"{x['mean']:.4f} +- {x['standard_deviation']:.4f}"
        print(f"{split} {score} {spread}, seeds {settings.seeds}")


def mean_and_spread(scores):
    """Return the mean and the sample standard deviation, which is 0 for a single score."""
    spread = np.std(scores, ddof=1) if len(scores) > 1 else 0.0
    return {"mean": float(np.mean(scores)), "standard_deviation": float(spread)}
