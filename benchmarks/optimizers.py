"""Compare Adam and Muon in pretraining: held-out perplexity at equal tokens and at equal time.

    TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 python benchmarks/optimizers.py CORPUS RUNS

CORPUS is a folder of ``keras-elmo prepare``. Each seed trains a new biLM three times: with Adam,
with Muon for equally many steps on the same batches, and with Muon for the steps that fit into
Adam's time. Other options go to ``keras-elmo pretrain``. RUNS keeps each finished run, so a call
that was interrupted continues there. Times are from the logs of the runs and do not include
counting the text. With --jobs 2, Adam and Muon of a seed run at once; use one thread each.
"""

import argparse
import concurrent.futures
import csv
import hashlib
import json
import pathlib
import subprocess
import sys

import numpy as np


def digest(corpus, options):
    """Return a short digest of the corpus and the options, for the names of the runs."""
    return hashlib.sha256(repr((str(corpus.resolve()), options)).encode()).hexdigest()[:8]


def train(corpus, folder, seed, optimizer, rate, steps, options):
    """Train, unless the log of the run exists, and return the last row of the log."""
    log = folder / "log.csv"
    if not log.exists():
        command = [sys.executable, "-m", "keras_elmo.cli", "pretrain", corpus, folder, "--quiet"]
        command += ["--seed", seed, "--optimizer", optimizer, "--learning-rate", rate]
        command += ["--steps", steps, "--save-every", steps, *options]
        subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL)
    with open(log, newline="") as file:
        last = list(csv.DictReader(file))[-1]
    if int(last["step"]) != steps:
        raise ValueError(f"Expected a run of {steps} steps. Received: {log} of {last['step']}")
    return last


def train_all(arguments, options):
    """Return the final figures of every run, in a dict from the name of the row."""

    def run(seed, name, optimizer, steps):
        corpus, rate = arguments.corpus, getattr(arguments, f"{optimizer}_rate")
        folder = arguments.runs / f"{name}-{rate:g}-{steps}-{seed}-{digest(corpus, options)}"
        last = train(corpus, folder, seed, optimizer, rate, steps, options)
        facts = {"tokens": int, "seconds": float, "perplexity": float}
        return {"steps": steps, **{key: of(last[key]) for key, of in facts.items()}}

    adam, muon, as_long = [], [], []
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        # With two jobs, Adam and Muon of one seed run at once and slow each other equally.
        for seed in arguments.seeds:
            adam.append(pool.submit(run, seed, "adam", "adam", arguments.steps))
            muon.append(pool.submit(run, seed, "muon", "muon", arguments.steps))
        try:
            for seed, *pair in zip(arguments.seeds, adam, muon):
                seconds, others = (one.result()["seconds"] for one in pair)
                steps = round(arguments.steps * seconds / others)
                as_long.append(pool.submit(run, seed, "muon-as-long", "muon", steps))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    runs = {"Adam": adam, "Muon, equal tokens": muon, "Muon, equal time": as_long}
    return {name: [one.result() for one in of] for name, of in runs.items()}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("runs", type=pathlib.Path, help="folder")
    parser.add_argument("--adam-rate", type=float, default=0.004)
    parser.add_argument("--muon-rate", type=float, default=0.004)
    parser.add_argument("--steps", type=int, default=2600)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    arguments, options = parser.parse_known_args()
    options = ["--size", "mini", *options]  # A --size of the user comes later and wins.
    arguments.runs.mkdir(parents=True, exist_ok=True)
    table = {}
    print("| | rate | steps | million tokens | seconds | held-out perplexity |")
    print("|---|---|---|---|---|---|")
    for name, runs in train_all(arguments, options).items():
        rate = arguments.adam_rate if name == "Adam" else arguments.muon_rate
        table[name] = {key: [one[key] for one in runs] for key in runs[0]}
        means = {key: np.mean(values) for key, values in table[name].items()}
        spread = np.std(table[name]["perplexity"], ddof=1) if len(runs) > 1 else 0.0
        print(
            f"| {name} | {rate:g} | {means['steps']:.0f} | {means['tokens'] / 1e6:.2f} | "
            f"{means['seconds']:.0f} | {means['perplexity']:.1f} ± {spread:.1f} |"
        )
    facts = {"seeds": arguments.seeds, "options": options, "runs": table}
    (arguments.runs / "optimizers.json").write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
