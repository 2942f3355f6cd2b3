"""Measure tokens/s of Embedder on every engine and dtype, of its products alone and of AllenNLP.

    python benchmarks/throughput.py --data test.txt [--allennlp-python PYTHON] [--table FILE]

--data takes Penn Treebank trees, one a line (SST test). The default is sentences of random words,
as long as SST's. Weights are random, with the sizes of the released models and of the models in
the package; AllenNLP gets the same. Run it on an idle machine; KERAS_BACKEND picks the backend.

The limit is the time of the float32 matrix products for the batches that Embedder makes, in the
fastest installed library. It counts the LSTMs for every batch, and the character CNN once for
every distinct word. For single sentences it counts the LSTMs only, as for known words. --table
writes the table into a Markdown file with one table for each kind of CPU.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import tempfile

import keras
import numpy as np
from limit import cpu_name, lstm_seconds, seconds, word_seconds
from peer import ask_allennlp

import keras_elmo
from keras_elmo.embed.embedder import length_batches
from keras_elmo.embed.engine_choice import DTYPES
from keras_elmo.presets import open_preset
from keras_elmo.utils.cpu import cpu_flags

SIZES = {
    "original": keras_elmo.BiLMConfig(),
    "medium": keras_elmo.BiLMConfig(lstm_dim=2048, projection_dim=256, n_highway=1),
    "small": keras_elmo.BiLMConfig(lstm_dim=1024, projection_dim=128, n_highway=1),
    "elmo_small_en": open_preset("elmo_small_en").config,
    "elmo_mini_en": open_preset("elmo_mini_en").config,
}
CASES = {f"{engine}/{dtype}": (engine, dtype) for engine in DTYPES for dtype in DTYPES[engine]}


def read_sentences(path, limit):
    if path:
        import nltk

        lines = path.read_text().splitlines()[:limit]
        return [nltk.Tree.fromstring(line).leaves() for line in lines]
    rng = np.random.default_rng(0)
    words = ["".join(map(chr, rng.integers(97, 123, rng.integers(1, 12)))) for _ in range(6000)]
    frequency = 1 / np.arange(1, 6001)
    lengths = rng.integers(4, 36, limit)
    return [rng.choice(words, n, p=frequency / frequency.sum()).tolist() for n in lengths]


def measure_limit(config, sentences, batch_tokens):
    """Return a dict from library to the seconds of LSTMs and character CNN for all batches."""
    groups = length_batches([len(s) for s in sentences], batch_tokens)
    batches = [(len(group), max(len(sentences[i]) for i in group) + 2) for group in groups]
    lengths = [len(w.encode()) for w in {w for s in sentences for w in s}]
    longest = min(50, int(np.mean(lengths)) + 2 + config.widest_filter)
    words = word_seconds(config, len(lengths), longest)
    lstms = lstm_seconds(config, batches)
    return {name: took + words[name] for name, took in lstms.items()}


def fresh(embedder):
    """Clear the token table of an Embedder, but keep what it compiled, as in a long run."""
    vars(embedder).pop("_table", None)
    return embedder


def measure_case(elmo, engine, dtype, sentences, singles, arguments):
    """Return seconds: in batches, and one sentence at a time with new and with known words."""
    if engine == "keras" and dtype != "float32":
        half = keras_elmo.ElmoLayer(elmo.config, dtype=dtype)
        half.build((None, None, 50))
        half.set_weights(elmo.get_weights())
        elmo = half
    embedder = keras_elmo.Embedder(
        elmo, dtype=dtype, engine=engine, batch_tokens=arguments.batch_tokens
    )
    embedder.embed(sentences)
    for sentence in singles if keras.backend.backend() == "jax" else singles[:3]:
        embedder.embed([sentence])  # JAX compiles for each multiple of eight tokens.
    batched = seconds(lambda: fresh(embedder).embed(sentences), arguments.repeats)

    def one_at_a_time():
        for sentence in singles:
            embedder.embed([sentence])

    fresh(embedder)
    return batched, seconds(one_at_a_time), seconds(one_at_a_time)


def measure(name, sentences, arguments):
    """Return the rows of the table as dicts of size, case and figures."""
    config = SIZES[name]
    elmo = keras_elmo.ElmoLayer(config)
    elmo.build((None, None, 50))
    singles = sentences[: arguments.single]
    tokens, single_tokens = (sum(map(len, some)) for some in (sentences, singles))
    rows = []

    def add(case, batched, new=None, known=None, note=""):
        figures = {
            "batched": tokens / batched,
            "one_new": new and single_tokens / new,
            "one_known": known and single_tokens / known,
        }
        rows.append({"size": name, "case": case, **figures, "note": note})
        print(rows[-1], flush=True)

    limits = measure_limit(config, sentences, arguments.batch_tokens)
    one = lstm_seconds(config, [(1, len(s) + 2) for s in singles])
    for library in limits:
        add(f"products, {library}", limits[library], None, one[library])
    for case in arguments.cases:
        add(case, *measure_case(elmo, *CASES[case], sentences, singles, arguments))
    if arguments.allennlp_python:
        found = measure_allennlp(elmo, sentences, arguments)
        new = single_tokens / found["single"]
        add(
            "AllenNLP", tokens / found["batched"], new, new, f"differs by {found['difference']:.1e}"
        )
    best = max(row["batched"] for row in rows if row["case"].startswith("products"))
    best_one = max(row["one_known"] for row in rows if row["case"].startswith("products"))
    for row in rows:
        row["batched_of_limit"] = row["batched"] / best
        row["one_of_limit"] = row["one_known"] and row["one_known"] / best_one
    return rows


def measure_allennlp(elmo, sentences, arguments):
    """Return the better tokens/s of one thread and one per core, and the difference of layers."""
    with tempfile.TemporaryDirectory() as folder:
        elmo.save_hdf5(folder)
        best = {"batched": 0, "single": 0}
        for threads in {1, os.cpu_count()}:
            job = {"single": arguments.single, "threads": threads, "check": 1}
            found = ask_allennlp(
                arguments.allennlp_python,
                f"{folder}/options.json",
                f"{folder}/weights.hdf5",
                {"sentences": sentences, **job},
            )
            best = {key: max(best[key], found[key]) for key in best}
    ours = keras_elmo.Embedder(elmo).embed(sentences[:1])[0]
    return {**best, "difference": float(np.abs(ours - np.array(found["layers"][0])).max())}


def machine():
    flags = cpu_flags()
    name = f"{os.cpu_count()} cores of {cpu_name()}"
    return name + (f" ({', '.join(flags)})" if flags else "")


def as_markdown(result):
    """Return the section of this machine."""
    columns = ("size", "what", "batched", "of the limit", "one at a time, words new", "known")
    lines = [
        f"## {result['machine']}",
        "",
        f"{result['date']}, {result['sentences']} sentences, {result['single']} one at a time; "
        + ", ".join(f"{name} {version}" for name, version in result["versions"].items())
        + ". Tokens/s.",
        "",
        "| " + " | ".join([*columns, "of the limit"]) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for row in result["rows"]:
        shares = [row[key] and f"{row[key]:.2f}" for key in ("batched_of_limit", "one_of_limit")]
        speeds = [row[key] and f"{row[key]:.0f}" for key in ("batched", "one_new", "one_known")]
        what = f"{row['case']}, {row['note']}" if row["note"] else row["case"]
        cells = [row["size"], what, speeds[0], shares[0], speeds[1], speeds[2], shares[1]]
        lines.append("| " + " | ".join(cell or "" for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def keep_table(path, result):
    """Write the section of this machine into the file, replacing an older one."""
    text = path.read_text("utf-8") if path.exists() else "# Throughput by machine\n"
    sections = re.split(r"(?m)^(?=## )", text)
    title = f"## {result['machine']}\n"
    kept = [section.rstrip() + "\n" for section in sections if not section.startswith(title)]
    path.write_text("\n".join([*kept, as_markdown(result)]), "utf-8")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=pathlib.Path, help="Penn Treebank trees, one a line")
    parser.add_argument("--limit", type=int, default=300, help="sentences in batches")
    parser.add_argument("--single", type=int, default=20, help="sentences one at a time")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--repeats", type=int, default=2, help="repeats of the batched runs")
    parser.add_argument("--batch-tokens", type=int, default=2048)
    parser.add_argument("--allennlp-python", help="a Python that has AllenNLP 2.10.1")
    parser.add_argument("--json", type=pathlib.Path, help="write all figures to this file")
    parser.add_argument("--table", type=pathlib.Path, help="write a table into this Markdown file")
    arguments = parser.parse_args()
    sentences = read_sentences(arguments.data, arguments.limit)
    print(machine(), flush=True)
    rows = [row for name in arguments.sizes for row in measure(name, sentences, arguments)]
    result = {
        "machine": machine(),
        "date": datetime.date.today().isoformat(),
        "sentences": len(sentences),
        "single": arguments.single,
        "versions": {
            "Python": platform.python_version(),
            "Keras": f"{keras.__version__} on {keras.backend.backend()}",
        },
        "rows": rows,
    }
    print(as_markdown(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    if arguments.table:
        keep_table(arguments.table, result)


if __name__ == "__main__":
    main()
