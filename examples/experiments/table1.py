"""Measure what ELMo adds to task models with word vectors: the paper's table 1.

    python examples/experiments/table1.py --plot weights.png
    python examples/experiments/table1.py --data FOLDER --vectors glove.txt --cache LAYERS

The first command prints the table of the finished runs in --results as Markdown, and draws the mean
layer weights of their mixes. The second command runs the missing runs first. Each run is a process:
one example on its data, with one seed, with or without ELMo. The script writes the result of each
run to a file, so an interrupted call continues. Runs with other options, vectors or weights of the
biLM run again. For another --preset, choose another folder for --results. FOLDER contains the
folders conll2003 (eng.train, eng.testa, eng.testb), sst5 (train.txt, dev.txt, test.txt), sick and
propbank_ewt (train.tsv, dev.tsv, test.tsv, or .xz), gap (gap-*.tsv) and xquad_en (xquad.en.json).
glove.py writes the word vectors. --cache receives the biLM's layers, which are computed once.
"""

import argparse
import json
import lzma
import pathlib
import subprocess
import sys
import time
from typing import NamedTuple

import numpy as np
from several_seeds import fingerprint, mean_and_spread

HERE = pathlib.Path(__file__).parent
SIDES = "baseline", "elmo"


class Task(NamedTuple):
    """A task: a script of ours, its data and options, and the paper's row.

    Attributes:
        title: str. The data set and the score.
        paper: tuple. The paper's data set, its baseline and its score with ELMo.
        files: tuple of str. Files after --train, --dev and --test, or a folder after --data.
            A JSON file alone is read in folds.
        options: tuple of str. Options of all runs of the task.
    """

    title: str
    paper: tuple
    files: tuple = ()
    options: tuple = ()


def three(folder, *names):
    return tuple(f"{folder}/{name}" for name in names)


TSV = "train.tsv", "dev.tsv", "test.tsv"
# The options limit the training to what two slow cores can do.
TASKS = {
    "questions": Task(
        "XQuAD-en, F1",
        ("SQuAD", 81.1, 85.8),
        ("xquad_en/xquad.en.json",),
        ("--folds", "5", "--epochs", "6"),
    ),
    "entailment": Task(
        "SICK, accuracy",
        ("SNLI", 88.0, 88.7),
        three("sick", *TSV),
        ("--epochs", "6", "--batch-size", "64"),
    ),
    "srl": Task(
        "PropBank-EWT, F1",
        ("OntoNotes, roles", 81.4, 84.6),
        three("propbank_ewt", *TSV),
        ("--epochs", "6"),
    ),
    "coreference": Task(
        "GAP, F1",
        ("OntoNotes, coreference", 67.2, 70.4),
        ("gap",),
        ("--epochs", "12", "--patience", "3"),
    ),
    "ner": Task(
        "CoNLL-2003, F1",
        ("CoNLL-2003", 90.15, 92.22),
        three("conll2003", "eng.train", "eng.testa", "eng.testb"),
        ("--epochs", "15", "--patience", "4"),
    ),
    "sst5": Task(
        "SST-5, accuracy",
        ("SST-5", 51.4, 54.7),
        ("sst5",),
        ("--epochs", "3", "--shortest", "8", "--units", "150"),
    ),
}


def unpacked(path, folder):
    """Return a path, or where its .xz file was unpacked to."""
    packed = path.with_name(f"{path.name}.xz")
    if path.exists() or not packed.exists():
        return path
    target = folder / path.parent.name / path.name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(lzma.decompress(packed.read_bytes()))
    return target


def result_file(results, name, side, seed):
    return results / f"{name}-{side}-{seed}.json"


def is_finished(path, options, vectors, bilm):
    """Return whether a run with these options, word vectors and biLM has a result."""
    facts = json.loads(path.read_text("utf-8")) if path.exists() else {}
    read = facts.get("settings", {}).get("vectors")  # older scripts did not record settings
    found = facts.get("options"), read, facts.get("bilm")
    return found == (options, vectors.name, bilm)


def run(settings, name, side, seed):
    """Run an example unless its result exists; write the result."""
    task, path = TASKS[name], result_file(settings.results, name, side, seed)
    options = [*task.options, "--preset", settings.preset] if side == "elmo" else [*task.options]
    bilm = fingerprint(settings.preset) if side == "elmo" else None
    if is_finished(path, options, settings.vectors, bilm):
        return
    names = ("--data",) if len(task.files) == 1 else ("--train", "--dev", "--test")
    if task.files[0].endswith(".json"):
        names = ("--train",)  # and its folds
    files = [unpacked(settings.data / file, settings.cache) for file in task.files]
    given = [x for pair in zip(names, files) for x in pair] + options + ["--seed", seed]
    given += ["--vectors", settings.vectors]
    given += ["--cache", settings.cache] if side == "elmo" else ["--no-elmo"]
    written = path.with_suffix(".tmp")
    start = time.monotonic()
    command = [sys.executable, HERE.parent / f"{name}.py", *given, "--scores", written]
    subprocess.run(list(map(str, command)), check=True)
    scores = json.loads(written.read_text("utf-8"))
    seconds = round(time.monotonic() - start)
    facts = {"options": options, "bilm": bilm, "seconds": seconds, **scores}
    written.write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    written.replace(path)


def scores_of(results, name):
    """Return the scores on test of each side, in percent, and commands and biLMs of ELMo's runs."""
    scores, commands = {}, set()
    for side in SIDES:
        paths = sorted(results.glob(f"{name}-{side}-*.json"))
        runs = [json.loads(path.read_text("utf-8")) for path in paths]
        scores[side] = [100 * run["test"] for run in runs]
        if side == "elmo":
            given = ((" ".join(run["options"]), run.get("bilm", "unknown")[:8]) for run in runs)
            commands |= {f"`{name}.py {options}`, biLM `{bilm}`" for options, bilm in given}
    return scores, commands


def weights_of(results):
    """Return the mean layer weights of each mix of each task, with its name."""
    found = {}
    for name, task in TASKS.items():
        for path in sorted(results.glob(f"{name}-elmo-*.json")):
            for mix, weights in json.loads(path.read_text("utf-8"))["layer_weights"].items():
                place = mix.removeprefix("at_")
                found.setdefault(f"{task.title.split(',')[0]}, {place}", []).append(weights)
    return {row: np.mean(runs, axis=0) for row, runs in found.items()}


def shown(scores):
    """Return the mean and the standard deviation of scores as text."""
    if not scores:
        return "not run"
    found = mean_and_spread(scores)
    spread = f" ± {found['standard_deviation']:.2f}" if len(scores) > 1 else ""
    return f"{found['mean']:.2f}{spread}"


def gain(baseline, elmo):
    """Return the absolute gain, and how much of the error of the baseline it removes."""
    return f"{elmo - baseline:+.2f} / {100 * (elmo - baseline) / (100 - baseline):.1f}%"


def to_markdown(results):
    """Return the table of the finished runs."""
    lines = [
        "| task | baseline | + ELMo | gain / relative | seeds | paper's data | paper's baseline "
        "| paper's + ELMo | paper's gain / relative |",
        "|" + "---|" * 9,
    ]
    limits = []
    for name, task in TASKS.items():
        (baseline, elmo), commands = (x := scores_of(results, name))[0].values(), x[1]
        means = [mean_and_spread(x)["mean"] for x in (baseline, elmo) if x]
        ours = gain(*means) if len(means) == 2 else ""
        seeds = f"{len(baseline)}, {len(elmo)}"
        cells = [task.title, shown(baseline), shown(elmo), ours, seeds]
        cells += [task.paper[0], *(f"{x:.2f}" for x in task.paper[1:]), gain(*task.paper[1:])]
        lines.append(f"| {' | '.join(cells)} |")
        limits += [f"- {task.title}: {command}" for command in sorted(commands)]
    return "\n".join([*lines, "", *limits]).rstrip() + "\n"


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=pathlib.Path, help="folder of the data sets; without it nothing runs")
    add("--vectors", type=pathlib.Path, help="word2vec text file of word vectors")
    add("--cache", type=pathlib.Path, default="table1_layers", help="folder for the layers")
    add("--preset", default="elmo_small_en", help="biLM: name, directory or .zip")
    add(
        "--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="tasks to run, in this order"
    )
    add("--seeds", type=int, nargs="+", default=[1, 2, 3])
    add("--results", type=pathlib.Path, default=HERE / "results/table1")
    add("--plot", type=pathlib.Path, help="picture of the layer weights to write (figure 2)")
    settings = parser.parse_args(arguments)
    if settings.data and not settings.vectors:
        parser.error("expected --vectors with --data. glove.py writes such a file")
    if settings.data:
        settings.results.mkdir(parents=True, exist_ok=True)
        for seed in settings.seeds:
            for name in settings.tasks:
                for side in SIDES:
                    run(settings, name, side, seed)
    print(to_markdown(settings.results), end="")
    if settings.plot:
        from ablation_tables import plot_weights

        plot_weights(weights_of(settings.results), settings.plot)


if __name__ == "__main__":
    main()
