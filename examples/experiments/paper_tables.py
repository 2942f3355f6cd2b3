"""Measure what ELMo adds to task models with word vectors: the paper's tables 1 to 3.

    python examples/experiments/paper_tables.py --plot weights.png
    python examples/experiments/paper_tables.py --data FOLDER --vectors glove.txt --cache LAYERS

The first command prints the tables of the finished runs in --results as Markdown, and draws the
mean layer weights of their mixes. The second command runs the missing runs first. Each run is a
process: one example on its data, with one seed and one variant of its options. The script adds the
result of each run to the table in --results, so an interrupted call continues. Runs with other
options, vectors or weights of the biLM run again. After a change of an example, remove its rows.
For another --preset, choose another file for --results.

FOLDER contains the folders conll2003 (eng.train, eng.testa, eng.testb), sst5 (train.txt, dev.txt,
test.txt), sick and propbank_ewt (train.tsv, dev.tsv, test.tsv, or .xz), gap (gap-*.tsv) and
xquad_en (xquad.en.json). glove.py writes the word vectors. --cache receives the biLM's layers,
which are computed once. The tables are:

gain    each task without and with ELMo (table 1 of Peters et al., 2018)
layers  one layer, all layers with two lambdas, and other places for ELMo (tables 2 and 3)
shares  shares of the training data, without and with ELMo (figure 1)
"""

import argparse
import csv
import functools
import json
import lzma
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

import numpy as np

import keras_elmo

HERE = pathlib.Path(__file__).parent
SIDES = "baseline", "elmo"
TABLES = "gain", "layers", "shares"
# The columns of the table of runs: a run, what it was asked to do, and what it found.
KEY = "task", "variant", "seed"
ASKED = *KEY, "options", "vectors", "bilm"
COLUMNS = *ASKED, "dev", "test", "seconds", "layer_weights", "more"


class Task(NamedTuple):
    """A task: a script of ours, its data and options, and the paper's row.

    Attributes:
        title: str. The data set and the score.
        paper: tuple. The paper's data set, its baseline and its score with ELMo.
        files: dict. The options that name the data, and their files or folder.
        options: dict. Options of all runs of the task.
        layers: dict. The variants of ELMo in the table ``layers``: a title, options and the
            paper's score.
        shares: dict. Options of the runs on each share of the training data.
    """

    title: str
    paper: tuple
    files: dict
    options: dict
    layers: dict = {}
    shares: dict = {}


def in_folder(folder, *names):
    return {
        option: f"{folder}/{name}" for option, name in zip(("--train", "--dev", "--test"), names)
    }


TSV = "train.tsv", "dev.tsv", "test.tsv"
# The paper's scores on the dev set of SNLI.
LAYERS = {
    "baseline": ("no ELMo", {}, 88.1),
    "top": ("top layer", {"--layer": "-1"}, 89.1),
    "lambda_1": ("all layers, lambda 1", {"--l2": "1"}, 89.3),
    "elmo": ("all layers, lambda 0.001", {}, 89.5),
    "first": ("layer 0, without context", {"--layer": "0"}, None),
    "input": ("all layers, at the input only", {"--place": "input"}, 88.9),
    "output": ("all layers, at the output only", {"--place": "output"}, 88.7),
}
# Small shares get small batches, and the smallest more epochs, so that they have enough steps.
SHARES = {
    "0.01": {"--batch-size": "4", "--epochs": "100"},
    "0.05": {"--batch-size": "8"},
    "0.2": {"--batch-size": "16"},
}
# The options limit the training to what two slow cores can do.
TASKS = {
    "questions": Task(
        "XQuAD-en, F1",
        ("SQuAD", 81.1, 85.8),
        {"--train": "xquad_en/xquad.en.json"},
        {"--folds": "5", "--epochs": "6"},
    ),
    "entailment": Task(
        "SICK, accuracy",
        ("SNLI", 88.0, 88.7),
        in_folder("sick", *TSV),
        {"--epochs": "6", "--batch-size": "64"},
        layers=LAYERS,
    ),
    "srl": Task(
        "PropBank-EWT, F1",
        ("OntoNotes, roles", 81.4, 84.6),
        in_folder("propbank_ewt", *TSV),
        {"--epochs": "6"},
    ),
    "coreference": Task(
        "GAP, F1",
        ("OntoNotes, coreference", 67.2, 70.4),
        {"--data": "gap"},
        {"--epochs": "12", "--patience": "3"},
    ),
    "ner": Task(
        "CoNLL-2003, F1",
        ("CoNLL-2003", 90.15, 92.22),
        in_folder("conll2003", "eng.train", "eng.testa", "eng.testb"),
        {},
        shares=SHARES,
    ),
    "sst5": Task(
        "SST-5, accuracy",
        ("SST-5", 51.4, 54.7),
        {"--data": "sst5"},
        {"--epochs": "4"},
    ),
}


def variants_of(task, tables):
    """Return the runs of a task that some tables need: a dict from variant to added options."""
    found = {}
    if "gain" in tables:
        found |= {side: {} for side in SIDES}
    if "layers" in tables:
        found |= {variant: options for variant, (_, options, _) in task.layers.items()}
    if "shares" in tables:
        for share, options in task.shares.items():
            found |= {f"{side}_{share}": {"--share": share, **options} for side in SIDES}
    return found


@functools.lru_cache
def fingerprint(preset):
    """Return a digest of the weights of a biLM, because weights can change under one name."""
    return keras_elmo.ElmoLayer.from_preset(preset).fingerprint()


def options_of(task, variant, added, preset):
    """Return the options of a run as a list, with the biLM if the variant has ELMo."""
    bilm = {} if variant.startswith("baseline") else {"--preset": preset}
    return [x for pair in {**task.options, **added, **bilm}.items() for x in pair]


def unpacked(path, folder):
    """Return the path, after unpacking its .xz file to the other folder if needed."""
    packed = path.with_name(f"{path.name}.xz")
    if path.exists() or not packed.exists():
        return path
    target = folder / path.parent.name / path.name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(lzma.decompress(packed.read_bytes()))
    return target


def read_table(path):
    """Return the rows of the table of runs, as dicts of text; none if the file does not exist."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_table(path, rows):
    """Write the rows of the table of runs, in order."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: [row[name] for name in KEY]))


def as_text(numbers):
    """Return numbers by name as text: name=0.1/0.2 for a list, with spaces between names."""
    lists = {name: x if isinstance(x, list) else [x] for name, x in numbers.items()}
    return " ".join(f"{name}={'/'.join(f'{n:g}' for n in x)}" for name, x in lists.items())


def run(settings, name, variant, added, seed):
    """Run an example, unless the table has its result; add the result to the table."""
    task, rows = TASKS[name], read_table(settings.results)
    options = options_of(task, variant, added, settings.preset)
    bilm = fingerprint(settings.preset) if "--preset" in options else ""
    asked = [*map(str, (name, variant, seed, " ".join(options), settings.vectors.name, bilm))]
    if any([row[column] for column in ASKED] == asked for row in rows):
        return
    given = [*options, "--seed", seed, "--vectors", settings.vectors]
    for option, file in task.files.items():
        given += [option, unpacked(settings.data / file, settings.cache)]
    given += ["--cache", settings.cache] if bilm else ["--no-elmo"]
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        written = pathlib.Path(folder) / "scores.json"
        command = [sys.executable, HERE.parent / f"{name}.py", *given, "--scores", written]
        subprocess.run(list(map(str, command)), check=True)
        facts = json.loads(written.read_text("utf-8"))
    more = {x: facts[x] for x in ("epochs_trained", "exact") if x in facts}
    row = dict(zip(ASKED, asked)) | {
        "dev": f"{facts['dev']:.6f}",
        "test": f"{facts['test']:.6f}",
        "seconds": round(time.monotonic() - start),
        "layer_weights": as_text(facts["layer_weights"]),
        "more": as_text(more | facts.get("measures", {})),
    }
    rows = [x for x in rows if [x[column] for column in KEY] != asked[: len(KEY)]]
    write_table(settings.results, [*rows, row])


def read_runs(results, name, variant):
    """Return the finished runs: ``test``, and ``layer_weights`` as a dict of lists."""
    rows = [x for x in read_table(results) if (x["task"], x["variant"]) == (name, variant)]
    runs = []
    for row in rows:
        pairs = (mix.split("=") for mix in row["layer_weights"].split())
        weights = {mix: [*map(float, numbers.split("/"))] for mix, numbers in pairs}
        runs.append({"test": float(row["test"]), "layer_weights": weights})
    return runs


def mean_layer_weights(results):
    """Return the mean layer weights of each mix of each task, with its name."""
    found = {}
    for name, task in TASKS.items():
        for facts in read_runs(results, name, "elmo"):
            for mix, weights in facts["layer_weights"].items():
                place = mix.removeprefix("at_")
                found.setdefault(f"{task.title.split(',')[0]}, {place}", []).append(weights)
    return {row: np.mean(runs, axis=0) for row, runs in found.items()}


def score(runs):
    """Return the mean and the standard deviation of test scores, in percent, as text."""
    if not runs:
        return "not run"
    scores = [100 * facts["test"] for facts in runs]
    spread = f" ± {np.std(scores, ddof=1):.2f}" if len(scores) > 1 else ""
    return f"{np.mean(scores):.2f}{spread}"


def difference(baseline, elmo):
    """Return the gain in points, and how much of the error of the baseline it removes."""
    return f"{elmo - baseline:+.2f} / {100 * (elmo - baseline) / (100 - baseline):.1f}%"


def gain(baseline, elmo):
    """Return the ``difference`` of two lists of runs, or "" if one is empty."""
    if not (baseline and elmo):
        return ""
    return difference(*(100 * np.mean([x["test"] for x in runs]) for runs in (baseline, elmo)))


def to_table(head, rows):
    """Return a table as Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]]) + "\n"


def gain_table(results):
    """Return the table ``gain`` of all tasks."""
    rows = []
    for name, task in TASKS.items():
        sides = [read_runs(results, name, side) for side in SIDES]
        theirs = [task.paper[0], difference(*task.paper[1:])]
        rows.append([task.title, *map(score, sides), gain(*sides), *theirs])
    head = ["task", "baseline", "+ ELMo", "gain / relative", "paper's data", "paper's gain"]
    return to_table(head, rows)


def layers_table(results, name):
    """Return the table ``layers`` of a task."""
    task, rows = TASKS[name], []
    baseline = read_runs(results, name, "baseline")
    for variant, (title, _, paper) in task.layers.items():
        runs = read_runs(results, name, variant)
        change = gain(baseline, runs) if variant != "baseline" else ""
        rows.append([title, score(runs), change, f"{paper:.1f}" if paper else ""])
    return to_table([task.title, "score", "gain / relative", f"paper's {task.paper[0]}, dev"], rows)


def shares_table(results, name):
    """Return the table ``shares`` of a task."""
    task, rows = TASKS[name], []
    for share in (*task.shares, ""):
        ends = f"_{share}" if share else ""
        sides = [read_runs(results, name, f"{side}{ends}") for side in SIDES]
        rows.append([f"{100 * float(share or 1):g}%", *map(score, sides), gain(*sides)])
    return to_table([task.title, "baseline", "+ ELMo", "gain / relative"], rows)


def to_markdown(results):
    """Return the tables of the finished runs."""
    found = [gain_table(results)]
    found += [layers_table(results, name) for name, task in TASKS.items() if task.layers]
    return found + [shares_table(results, name) for name, task in TASKS.items() if task.shares]


def plot_weights(rows, path):
    """Draw the softmax weights of the layers, one row for each mix, as a heat map (figure 2).

    Args:
        rows: dict from the name of a mix to the weights of its layers.
        path: path. Picture to write.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.style.use(HERE.parents[1] / "docs" / "pictures.mplstyle")
    n_layers = len(next(iter(rows.values())))
    figure, axes = plt.subplots(figsize=(5.5, 1.3 + 0.45 * len(rows)), layout="constrained")
    picture = axes.imshow(list(rows.values()), vmin=0, vmax=1, cmap="Blues", aspect="auto")
    for (y, x), weight in np.ndenumerate(list(rows.values())):
        color = "white" if weight > 0.6 else "black"
        axes.text(x, y, f"{weight:.2f}", color=color, ha="center", va="center")
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_xticks(range(n_layers), [f"layer {i}" for i in range(n_layers)])
    figure.colorbar(picture, label="weight")
    figure.savefig(path)
    plt.close(figure)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=pathlib.Path, help="folder of the data sets; without it nothing runs")
    add("--vectors", type=pathlib.Path, help="word2vec text file of word vectors")
    add("--cache", type=pathlib.Path, default="paper_layers", help="folder for the layers")
    add("--preset", default="elmo_small_en", help="biLM: name, directory or .zip")
    add("--tables", nargs="+", choices=TABLES, default=list(TABLES), help="tables to run")
    add("--tasks", nargs="+", choices=TASKS, default=list(TASKS), help="tasks to run")
    add("--seeds", type=int, nargs="+", default=[1, 2, 3])
    add("--results", type=pathlib.Path, default=HERE / "results.csv", help="table of the runs")
    add("--plot", type=pathlib.Path, help="picture of the layer weights to write (figure 2)")
    settings = parser.parse_args(arguments)
    if settings.data and not settings.vectors:
        parser.error("expected --vectors with --data. glove.py writes such a file")
    if settings.data:
        for seed in settings.seeds:
            for name in settings.tasks:
                for variant, added in variants_of(TASKS[name], settings.tables).items():
                    run(settings, name, variant, added, seed)
    print("\n".join(to_markdown(settings.results)), end="")
    if settings.plot:
        weights = mean_layer_weights(settings.results)
        if not weights:
            parser.error(f"expected runs with ELMo to --plot. Received: none in {settings.results}")
        plot_weights(weights, settings.plot)


if __name__ == "__main__":
    main()
