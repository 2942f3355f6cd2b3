"""Compare Adam and Muon in pretraining: held-out perplexity at equal tokens and at equal time.

    TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 python benchmarks/optimizers.py CORPUS RUNS

CORPUS is a folder of ``keras-elmo prepare``. Every seed trains a new biLM three times: with
Adam, with Muon for as many steps, which read the same batches, and with Muon for as many
steps as fit into the time that Adam took. Other options go to ``keras-elmo pretrain``. Each
run is kept in RUNS when it ends, so that a call that was broken off goes on from there.
Time is that of the run's log, which begins after the text is counted; with --jobs 2 two
seeds run side by side, best with one thread each.
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
    """Return what tells runs on another corpus or with other options apart."""
    return hashlib.sha256(repr((str(corpus.resolve()), options)).encode()).hexdigest()[:8]


def train(corpus, folder, seed, optimizer, rate, steps, options):
    """Train unless it is done, and return the last row of the log."""
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


def train_seed(seed, arguments, options):
    """Return what each of the three runs of a seed ends with."""

    def run(name, optimizer, rate, steps):
        corpus = arguments.corpus
        folder = arguments.runs / f"{name}-{rate:g}-{steps}-{seed}-{digest(corpus, options)}"
        last = train(corpus, folder, seed, optimizer, rate, steps, options)
        facts = {"tokens": int, "seconds": float, "perplexity": float}
        return {"steps": steps, **{key: of(last[key]) for key, of in facts.items()}}

    adam = run("adam", "adam", arguments.adam_rate, arguments.steps)
    muon = run("muon", "muon", arguments.muon_rate, arguments.steps)
    steps = round(arguments.steps * adam["seconds"] / muon["seconds"])
    as_long = run("muon-as-long", "muon", arguments.muon_rate, steps)
    return {"Adam": adam, "Muon, equal tokens": muon, "Muon, equal time": as_long}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("runs", type=pathlib.Path, help="folder")
    parser.add_argument("--adam-rate", type=float, default=0.004)
    parser.add_argument("--muon-rate", type=float, default=0.004)
    parser.add_argument("--steps", type=int, default=2600)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=1, help="seeds side by side")
    arguments, options = parser.parse_known_args()
    options = ["--size", "mini", *options]  # a --size that is given comes later, and wins
    arguments.runs.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        found = list(pool.map(lambda x: train_seed(x, arguments, options), arguments.seeds))
    table = {}
    print("| | rate | steps | million tokens | seconds | held-out perplexity |")
    print("|---|---|---|---|---|---|")
    for name in found[0]:
        rate = arguments.adam_rate if name == "Adam" else arguments.muon_rate
        table[name] = {key: [x[name][key] for x in found] for key in found[0][name]}
        means = {key: np.mean(values) for key, values in table[name].items()}
        spread = np.std(table[name]["perplexity"], ddof=1) if len(found) > 1 else 0.0
        print(
            f"| {name} | {rate:g} | {means['steps']:.0f} | {means['tokens'] / 1e6:.2f} | "
            f"{means['seconds']:.0f} | {means['perplexity']:.1f} ± {spread:.1f} |"
        )
    facts = {"seeds": arguments.seeds, "options": options, "runs": table}
    (arguments.runs / "optimizers.json").write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
