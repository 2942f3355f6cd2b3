"""Repeat the paper's tables on a task: what ELMo adds, by layers, place and amount of data.

    python examples/experiments/ablations.py sst5 RESULTS --data DIRECTORY --seeds 1 2 3
    python examples/experiments/ablations.py ner RESULTS --train FILE --dev FILE --test FILE

Other options go to the script of the task; see the --help of sst5_runs.py or ner_runs.py. Each run
is a separate process, and RESULTS keeps its result, so a call that was interrupted continues with
the missing runs. RESULTS can have runs of several biLMs, but needs the same data for all runs. At
the end RESULTS has tables.md, tables.json, sizes.png, weights.png and curves.png. The tables are:

gain     baseline and +ELMo (table 1 of Peters et al., 2018)
layers   the top layer, and all layers with a lambda of 1 and of 0.001 (table 2)
places   ELMo at the input, at the output, at both (table 3)
sizes    --shares of the training data, with and without ELMo (figure 1)
weights  the layer weights that the mixes at input and output learned (figure 2)
curves   dev by epoch, and the epoch in which +ELMo passes the baseline's best (section 5.4)
controls text without context: layer 0 of the biLM alone; as x_k, word vectors that gensim
         trains on --corpus, the training text of the biLM; and these vectors with ELMo

--search first tries the same settings of dropout and learning rate for the baseline and for +ELMo,
and continues with the best settings of each on dev. For a share below 1 in --shares it searches on
that share, for everything else on --search-share of the data. It uses all seeds, or --search-seeds.
With --jobs 2 two runs share the machine; set TF_NUM_INTRAOP_THREADS=1 then.
"""

import argparse
import concurrent.futures
import hashlib
import importlib
import importlib.util
import itertools
import json
import multiprocessing
import pathlib
import shlex
import sys

import numpy as np
from ablation_tables import (
    epochs_to_pass,
    percent,
    plot_curves,
    plot_sizes,
    plot_weights,
    summarise,
    to_markdown,
)
from several_seeds import fingerprint
from tqdm import tqdm
from train_vectors import train_vectors

BASELINE, ELMO = {"elmo": "none"}, {}
SHARES = [0.01, 0.05, 0.2, 1.0]
TABLES = {
    "gain": {"baseline": BASELINE, "+ELMo": ELMO},
    "layers": {
        "baseline": BASELINE,
        "top layer": {"layers": "top"},
        "all layers, lambda 1": {"layers": "all", "l2": 1.0},
        "all layers, lambda 0.001": {"layers": "all", "l2": 0.001},
    },
    "places": {"baseline": BASELINE, **{x: {"elmo": x} for x in ("input", "output", "both")}},
    "sizes": {},  # Filled from --shares.
    "weights": {"both": {"elmo": "both", "layers": "all"}},
    "curves": {"baseline": BASELINE, "+ELMo": ELMO},
    "controls": {"baseline": BASELINE, "layer 0 alone": {"layers": "token"}, "+ELMo": ELMO},
}
VECTORS_ROW = "word vectors of the same text"
TRIALS = {"dropout": (0.3, 0.5, 0.7), "learning_rate": (1e-3, 2e-3)}
REST = "all else"  # Everything but the shares with their own search.
SCORES = {"sst5": "accuracy", "ner": "F1"}
# These settings do not change the result of a run.
NO_MATTER = {"seeds", "json", "cache", "predictions"}


class Runs:
    """Run the script of a task, and keep the result of each run in a file.

    Args:
        task: str. ``"sst5"`` or ``"ner"``.
        arguments: list of str. Command line of the script.
        folder: path. Folder of the result files.
        jobs: int. Number of runs at once.
    """

    def __init__(self, task, arguments, folder, jobs=1):
        self.script = f"{task}_runs"
        self.arguments, self.folder, self.jobs = arguments, folder, jobs
        folder.mkdir(parents=True, exist_ok=True)

    def settings(self, changes):
        """Return the settings of the script, with ``changes`` applied."""
        settings = importlib.import_module(self.script).parse([*self.arguments, "--json"])
        vars(settings).update(changes)
        return settings

    def path(self, changes, seed):
        """Return the path of the result of a run; the file may not exist yet."""
        settings = vars(self.settings(changes))
        matter = {key: str(x) for key, x in settings.items() if key not in NO_MATTER}
        if settings["elmo"] == "none":
            for key in ("preset", "layers", "l2", "on_the_fly"):
                del matter[key]
        else:
            matter["preset"] = fingerprint(settings["preset"])
        if settings["vectors"]:
            matter["vectors"] = pathlib.Path(settings["vectors"]).name
        key = hashlib.sha256(json.dumps(matter, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{key[:16]}-{seed}.json"

    def run(self, changes, seed):
        """Run once, and write the result of ``train_and_score``."""
        settings = self.settings(changes)
        found = importlib.import_module(self.script).train_and_score(settings, seed)
        text = json.dumps({"settings": vars(settings), **found}, default=str, indent=1)
        path = self.path(changes, seed)
        written = path.with_suffix(".tmp")
        written.write_text(text, encoding="utf-8")
        written.replace(path)

    def cache_layers(self):
        """Write the layers of the biLM before the runs, which must not write them at once."""
        settings = self.settings({})
        if not settings.on_the_fly:
            importlib.import_module(self.script).cache_layers(settings)

    def __call__(self, cells, name):
        """Return the result of each cell, a pair of changes and seed; run the missing ones."""
        missing = {self.path(*cell): cell for cell in cells if not self.path(*cell).exists()}
        # Start the longest runs first, so that no job runs alone at the end.
        ordered = sorted(missing.values(), key=lambda cell: -cell[0].get("share", 1))
        with concurrent.futures.ProcessPoolExecutor(
            self.jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1
        ) as pool:
            if any(changes.get("elmo") != "none" for changes, _ in ordered):
                pool.submit(self.cache_layers).result()
            started = [pool.submit(self.run, *cell) for cell in ordered]
            try:
                for run in tqdm(
                    concurrent.futures.as_completed(started), name, len(started), unit="run"
                ):
                    run.result()
            except BaseException:
                for run in started:
                    run.cancel()
                raise
        return [json.loads(self.path(*cell).read_text("utf-8")) for cell in cells]


def search(runs, shares, seeds):
    """Return the best settings on dev for each purpose and side, and a row for each trial.

    Args:
        runs: ``Runs``. Runs the trials.
        shares: dict from str to float. Maps a purpose, a share in percent or ``REST``, to the
            share of the training data to search on.
        seeds: list of int. Seeds of each trial; the mean over them counts.
    """
    trials = [dict(zip(TRIALS, values)) for values in itertools.product(*TRIALS.values())]
    sides = {"baseline": BASELINE, "+ELMo": ELMO}
    keys = [(purpose, side, n) for purpose in shares for side in sides for n in range(len(trials))]
    cells = [
        ({**sides[side], **trials[n], "share": shares[x]}, y) for x, side, n in keys for y in seeds
    ]
    found = iter(runs(cells, "search"))
    best, rows = {purpose: dict.fromkeys(sides) for purpose in shares}, {}
    of_trial = {key: [next(found) for _ in seeds] for key in keys}
    on_dev = {key: np.mean([run["dev"] for run in of_trial[key]]) for key in keys}
    for purpose, side, n in keys:
        first = max(range(len(trials)), key=lambda n: on_dev[purpose, side, n])
        best[purpose][side] = trials[first]
        tried = ", ".join(f"{key} {x:g}" for key, x in trials[n].items())
        rows[f"{percent(shares[purpose])}, {side}, {tried}"] = of_trial[purpose, side, n]
    return best, rows


def rows_of_shares(shares):
    """Return a dict from the rows of the table of sizes to the settings they change."""
    return {
        f"{percent(share)}, {name}": {**changes, "share": share}
        for share in shares
        for name, changes in (("baseline", BASELINE), ("+ELMo", ELMO))
    }


def control_vectors(corpus, folder, dimension):
    """Return the path of the corpus's word vectors and None, or None and why there are none."""
    if not corpus:
        return None, "--corpus names no text to train them on"
    if importlib.util.find_spec("gensim") is None:
        return None, "gensim, which trains them, is not installed"
    facts = [(path.name, path.stat().st_size) for path in corpus]
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:8]
    path = folder / f"word2vec-{dimension}-{digest}.txt"
    if not path.exists():
        print(f"Training word vectors on {len(corpus)} files", file=sys.stderr)
        train_vectors(path, corpus, dimension)
    return path, None


def make_tables(runs, wanted, seeds, best):
    """Return the runs of each row of each table.

    Args:
        runs: ``Runs``. Runs what is missing.
        wanted: dict. Maps a table to a dict from row to the settings it changes.
        seeds: list of int. Seeds of each row.
        best: dict. The best settings from ``search``; empty without a search.

    Returns:
        Dict from table to a dict from row to a list of results.
    """
    rows = [(name, row) for name in wanted for row in wanted[name]]
    cells = []
    for seed in seeds:
        for name, row in rows:
            changes = wanted[name][row]
            side = "baseline" if changes.get("elmo") == "none" else "+ELMo"
            searched = best.get(percent(changes.get("share", 1.0))) or best.get(REST) or {}
            cells.append(({**searched.get(side, {}), **changes}, seed))
    found = iter(runs(cells, "tables"))
    tables = {name: {row: [] for row in wanted[name]} for name in wanted}
    for _ in seeds:
        for name, row in rows:
            tables[name][row].append(next(found))
    return tables


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        usage="%(prog)s TASK RESULTS [options of the task]",
        allow_abbrev=False,  # --share belongs to the task.
    )
    parser.add_argument("task", choices=SCORES, help="task to run")
    parser.add_argument("results", type=pathlib.Path, help="folder of the results")
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES), help="tables")
    parser.add_argument(
        "--shares", type=float, nargs="+", default=SHARES, help="of the training data, for sizes"
    )
    parser.add_argument("--search", action="store_true", help="first tune both sides equally")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--search-share", type=float, default=0.2, help="share to search on")
    parser.add_argument("--search-seeds", type=int, nargs="+", help="seeds of the search")
    parser.add_argument(
        "--corpus", type=pathlib.Path, nargs="+", help="tokenised text, for controls"
    )
    settings, rest = parser.parse_known_args(arguments)
    score = SCORES[settings.task]
    runs = Runs(settings.task, rest, settings.results / "runs", settings.jobs)
    given = runs.settings({})
    if given.elmo == "none" or getattr(given, "predictions", None):
        parser.error("--elmo none and --predictions are for the script of the task")

    best, trials = {}, {}
    if settings.search:
        shares = settings.shares if "sizes" in settings.only else []
        shares = {percent(share): share for share in shares if share < 1}
        seeds = settings.search_seeds or given.seeds
        best, trials = search(runs, {**shares, REST: settings.search_share}, seeds)
    wanted = {name: TABLES[name] or rows_of_shares(settings.shares) for name in settings.only}
    notes = ""
    if "controls" in wanted:
        vectors, missing = control_vectors(settings.corpus, settings.results, given.dimension)
        if missing:
            notes = f"\nNo row of {VECTORS_ROW} in controls: {missing}.\n"
        else:
            row = {**BASELINE, "vectors": str(vectors)}
            rows = {VECTORS_ROW: row, f"{VECTORS_ROW}, +ELMo": {**ELMO, "vectors": str(vectors)}}
            wanted["controls"] = {**wanted["controls"], **rows}
    tables = make_tables(runs, wanted, given.seeds, best)
    if trials:
        tables = {"search": trials, **tables}
    summary = summarise(tables)
    text = f"`{runs.script}.py {shlex.join(rest)}`\n\n{to_markdown(summary, score)}{notes}"
    (settings.results / "tables.md").write_text(text, encoding="utf-8")
    facts = {"task": settings.task, "arguments": rest, "seeds": given.seeds, "score": score}
    facts |= {"settings": best, "tables": summary}
    if "curves" in summary:
        facts["epochs_to_pass"] = epochs_to_pass(summary["curves"])
    (settings.results / "tables.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    if "sizes" in summary:
        plot_sizes(summary["sizes"], settings.shares, score, settings.results / "sizes.png")
    if "curves" in summary:
        plot_curves(summary["curves"], score, settings.results / "curves.png")
    if "weights" in summary:
        [found] = summary["weights"].values()
        means = {x: [w["mean"] for w in mix] for x, mix in found["layer_weights"].items()}
        plot_weights(means, settings.results / "weights.png")
    print(text)


if __name__ == "__main__":
    main()
