"""Compare biLMs with other encoders for a CPU, by a linear probe on four tasks and by speed.

    python benchmarks/alternatives.py --data DATA --work WORK
    taskset -c 1 python benchmarks/alternatives.py --work WORK --speed TOKENS --repeats 3
    python benchmarks/alternatives.py --work WORK --report docs/alternatives.png

The first command trains the probes, the second measures speed and memory, and the third prints the
tables of docs/alternatives.md and draws its picture. Figures go to WORK/results.json. WORK also
contains the models that ``encoders.py`` reads, and gets the vectors of each encoder.

DATA contains ud_ewt (UD English-EWT, .conllu or .conllu.xz), conll2003 (eng.train, eng.testa and
eng.testb), sst5 (train.txt, dev.txt and test.txt) and wsd (semcor3.0/semcor.data.xml and
Evaluation_Datasets/ALL/ALL.data.xml). TOKENS has sentences of tokens, one a line.

All encoders read the same words. The probe is a softmax over the standardised vector of a word, or
over the mean of a sentence; an encoder with several layers is mixed as ScalarMix does. L-BFGS
trains it. The dev split chooses the L2 penalty, and for word senses the layer.
"""

import argparse
import collections
import json
import pathlib
import subprocess
import sys
import types

import numpy as np
from encoders import ENCODERS, load
from probe import EXAMPLES, plain, read_conll, read_trees, read_ud
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax
from seqeval.metrics.sequence_labeling import get_entities
from wsd import centroids, read_text, represent

SHARES = (100, 1000)
SEEDS = (1, 2, 3)
FREQUENT = 10_000
PENALTIES = (0.3, 0.03, 3e-3, 3e-4, 3e-5)
VOCABULARY = EXAMPLES.parent / "weights" / "elmo_small_en" / "vocab.txt"


def read_tags(folder, split):
    sentences, [tags] = read_ud(folder, split)
    rest = iter(tags)
    return sentences, [[next(rest) for _ in words] for words in sentences]


def read_sentiment(folder, split):
    sentences, labels = zip(*map(plain, read_trees(folder / f"{split}.txt")))
    return sentences, [[label] for label in labels]


READERS = {
    "tags": (read_tags, "ud_ewt"),
    "names": (read_conll, "conll2003"),
    "sentiment": (read_sentiment, "sst5"),
}
TITLES = {"tags": "POS", "names": "names", "sentiment": "sentiment", "senses": "senses"}


def read_task(task, data):
    """Return a dict from split to sentences and labels; "typos" is the test text with errors."""
    read, folder = READERS[task]
    splits = {}
    for split in ("train", "dev", "test"):
        sentences, labels = read(data / folder, split)
        order = np.random.default_rng(0).permutation(len(sentences))
        splits[split] = [sentences[i] for i in order], [labels[i] for i in order]
    splits["typos"] = mistype(splits["test"][0]), splits["test"][1]
    return splits


def mistype(sentences):
    """Swap, drop or double a letter in a tenth of the words."""
    rng = np.random.default_rng(0)

    def change(word):
        if rng.random() >= 0.1 or len(word) < 2:
            return word
        place, kind = rng.integers(len(word) - 1), rng.integers(3)
        pair = word[place : place + 2]
        return word[:place] + (pair[::-1], pair[1], pair[0] + pair)[kind] + word[place + 2 :]

    return [[change(word) for word in words] for words in sentences]


def vectors(name, embed, task, split, sentences, work):
    """Return the vectors of an encoder, (layers, words or sentences, width)."""
    path = work / f"{name}-{task}-{split}-{len(sentences)}.npy".replace(" ", "_")
    if not path.exists():
        found = embed([list(words) for words in sentences])
        if task == "sentiment":
            found = [x.mean(axis=1, keepdims=True) for x in found]
        np.save(path, np.concatenate(found, axis=1).astype("float16"))
    return np.load(path).astype("float32")


def fit(x, labels, n_classes, penalty, start):
    """Return the weights of the probe: of the layers, the biases and the matrix, in one array."""
    n_layers, rows, width = x.shape
    target = np.eye(n_classes, dtype="float32")[labels]

    def loss(parameters):
        mix, bias, matrix = unpack(parameters, n_layers, n_classes)
        shares = softmax(mix)
        products = x @ matrix
        log_p = log_softmax(np.tensordot(shares, products, 1) + bias, axis=-1)
        error = (np.exp(log_p) - target) / rows
        of_layers = x.transpose(0, 2, 1) @ error
        of_shares = (of_layers * matrix).sum(axis=(1, 2))
        gradient = [
            shares * (of_shares - shares @ of_shares),
            error.sum(axis=0),
            np.tensordot(shares, of_layers, 1) + penalty * matrix,
        ]
        value = -(log_p * target).sum() / rows + penalty / 2 * (matrix**2).sum()
        return float(value), np.concatenate([g.ravel() for g in gradient]).astype("float64")

    options = {"maxiter": 100, "ftol": 1e-4}
    return minimize(loss, start, jac=True, method="L-BFGS-B", options=options).x


def unpack(parameters, n_layers, n_classes):
    mix, bias, matrix = np.split(parameters.astype("float32"), [n_layers, n_layers + n_classes])
    return mix, bias, matrix.reshape(-1, n_classes)


def predict(x, parameters, n_classes):
    mix, bias, matrix = unpack(parameters, len(x), n_classes)
    return (np.tensordot(softmax(mix), x @ matrix, 1) + bias).argmax(axis=-1)


def train_probe(x, labels, dev, score, n_classes):
    """Return the function that predicts; ``score`` of the dev split chooses the penalty."""
    mean, deviation = x.mean(axis=1, keepdims=True), x.std(axis=1, keepdims=True) + 1e-6
    x, dev = (x - mean) / deviation, (dev - mean) / deviation
    parameters = np.zeros(len(x) + n_classes * (1 + x.shape[-1]))
    best, best_score = parameters, -1
    for penalty in PENALTIES:  # from strong to weak, each from the weights of the one before
        parameters = fit(x, labels, n_classes, penalty, parameters)
        found = score(predict(dev, parameters, n_classes))
        if found < best_score:
            break
        best, best_score = parameters, found
    return lambda x: predict((x - mean) / deviation, best, n_classes)


def score(task, predicted, labels, chosen=None):
    """Return the F1 of names, or the accuracy of other labels, in percent.

    Args:
        task: str. The task.
        predicted: list of str or int. Predicted labels, of all sentences in a row.
        labels: list of lists of str or int. Gold labels of each sentence.
        chosen: list of lists of bool or None. Words that count. A name counts if one of its words
            does.
    """
    flat = [label for sentence in labels for label in sentence]
    chosen = np.concatenate(chosen) if chosen else np.full(len(flat), True)
    if task != "names":
        return 100 * float(np.mean(np.array(predicted)[chosen] == np.array(flat)[chosen]))
    borders = np.cumsum([len(sentence) for sentence in labels])

    def names(tags):
        tags = np.insert(np.array(tags, dtype=object), borders, "O")  # a name ends with a sentence
        keep = np.insert(chosen, borders, False)
        return {name for name in get_entities(tags.tolist()) if keep[name[1] : name[2] + 1].any()}

    gold, found = names(flat), names(predicted)
    return 200 * len(gold & found) / max(1, len(gold) + len(found))


def frequent_words():
    words = VOCABULARY.read_text("utf-8").splitlines()
    return set(words[3 : 3 + FREQUENT])  # after <S>, </S> and <UNK>


def rare_words(sentences):
    frequent = frequent_words()
    return [[not {word, word.lower()} & frequent for word in words] for words in sentences]


def score_shares(count, score_of):
    """Return mean and deviation of the scores with few of ``count`` sentences, by their number."""
    scores = {}
    for share in SHARES:
        drawn = [np.random.default_rng(seed).permutation(count)[:share] for seed in SEEDS]
        found = [score_of(sentences) for sentences in drawn]
        scores[str(share)] = [float(np.mean(found)), float(np.std(found, ddof=1))]
    return scores


def probe_task(name, embed, task, splits, work):
    """Return the scores of an encoder on a task as a dict."""
    x = {key: vectors(name, embed, task, key, pair[0], work) for key, pair in splits.items()}
    labels = {key: pair[1] for key, pair in splits.items()}
    classes = sorted({label for sentence in labels["train"] for label in sentence})
    number = {label: i for i, label in enumerate(classes)}

    def of_dev(predicted):
        return score(task, [classes[i] for i in predicted], labels["dev"])

    def train(sentences):
        lengths = np.cumsum([0] + [len(sentence) for sentence in labels["train"]])
        rows = np.concatenate([np.arange(lengths[i], lengths[i + 1]) for i in sentences])
        y = np.array([number[label] for i in sentences for label in labels["train"][i]])
        predicts = train_probe(x["train"][:, rows], y, x["dev"], of_dev, len(classes))
        return lambda split: [classes[i] for i in predicts(x[split])]

    count = len(labels["train"])
    predicts = train(range(count))
    scores = {key: score(task, predicts(key), labels[key]) for key in ("test", "typos")}
    if task != "sentiment":
        rare = rare_words(splits["test"][0])
        scores["rare"] = score(task, predicts("test"), labels["test"], rare)
    return scores | score_shares(
        count, lambda sentences: score(task, train(sentences)("test"), labels["test"])
    )


def word_senses(embed, train, test):
    """Return the accuracies on words of which the training text has two senses or more, as a dict.

    A word gets the sense with the nearest centroid, in the layer that is best on SemEval-2007. A
    compound is rare if its first word is.
    """
    encoder = types.SimpleNamespace(embed=embed)
    typos = list(zip(mistype([tokens for tokens, _ in test]), (found for _, found in test)))
    clean, mistyped = (list(represent(encoder, text)) for text in (test, typos))
    rare = rare_words([tokens for tokens, _ in test])
    is_rare = [row[x.first] for row, (_, instances) in zip(rare, test) for x in instances]

    def accuracies(sentences):
        units, place, of_lemma = centroids(encoder, sentences)
        right = collections.defaultdict(list)
        for rare, (instance, layers), (_, of_typos) in zip(is_rare, clean, mistyped):
            senses = of_lemma.get(instance.lemma, {})
            if len(senses) < 2:
                continue
            is_gold = np.array([key in instance.keys for key in senses])
            of_senses = units[[place[key] for key in senses]]
            cosines = np.einsum("slw,tlw->tsl", of_senses, np.stack([layers, of_typos]))
            of_word, of_typo = is_gold[cosines.argmax(axis=1)]
            if instance.name.startswith("semeval2007"):
                right["dev"].append(of_word)
                continue
            right["test"].append(of_word)
            right["typos"].append(of_typo)
            if rare:
                right["rare"].append(of_word)
            most_frequent = is_gold[np.argmax(list(senses.values()))]
            right["most frequent"].append(np.full(len(layers), most_frequent))
        means = {part: 100 * np.mean(rows, axis=0) for part, rows in right.items()}
        layer = means.pop("dev").argmax()
        return {part: float(mean[layer]) for part, mean in means.items()}

    return accuracies(train) | score_shares(
        len(train), lambda rows: accuracies([train[i] for i in rows])["test"]
    )


def measure_quality(name, tasks, senses, work):
    """Return the scores of an encoder on each task."""
    embed, _ = load(name, work)
    row = {task: probe_task(name, embed, task, splits, work) for task, splits in tasks.items()}
    return row | {"senses": word_senses(embed, *senses)}


def measure_speed(name, work, text):
    """Return the figures of ``encoders.py`` in a new process."""
    script = pathlib.Path(__file__).with_name("encoders.py")
    command = [sys.executable, script, name, "--files", work]
    command += ["--text", text]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(printed.splitlines()[-1])


def merge_best(figures, others):
    """Return the better of two figures each: more tokens/s, and less of anything else."""
    if not others:
        return figures
    is_speed = ("batched", "single")
    return {
        key: (max if key in is_speed else min)(value, others[key]) for key, value in figures.items()
    }


def table(columns, results):
    """Return a Markdown table; ``columns`` maps a title to the path of a figure in the results."""
    lines = [f"| {' | '.join(['encoder', *columns])} |", "|---" * (len(columns) + 1) + "|"]
    for name, row in results.items():
        cells = [name]
        for part, key in columns.values():
            value = row[part][key]
            pair = value if isinstance(value, list) else [value]
            digits = 0 if pair[0] >= 100 else 1
            cells.append("±".join(f"{x:.{digits}f}" for x in pair))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def report(results, picture):
    """Print the tables, and draw scores over tokens/s."""
    figures = "batched", "single", "mb", "first_vector_s", "peak_mib"
    titles = "tokens/s: batches", "one sentence", "MB", "first vector, s", "peak, MiB"
    of_task = {title: (task, "test") for task, title in TITLES.items()}
    print(table(of_task | {x: ("speed", key) for x, key in zip(titles, figures)}, results), "\n")
    keys = {"typos": "errors", "rare": "rare", "1000": "1000", "100": "100"}
    exact = {name: row for name, row in results.items() if "int8" not in name}
    for task in TITLES:  # one table would be too wide for a page
        columns = {title: (task, key) for key, title in keys.items()}
        if task == "sentiment":
            del columns["rare"]
        print(table(columns, exact).replace("encoder", TITLES[task], 1), "\n")

    from matplotlib import pyplot

    pyplot.style.use(EXAMPLES.parent / "docs" / "pictures.mplstyle")
    figure, axes = pyplot.subplots(1, len(TITLES), figsize=(15, 4), layout="constrained")
    for axis, task in zip(axes, TITLES):
        for number, (name, row) in enumerate(results.items()):
            x, y = row["speed"]["batched"], row[task]["test"]
            marker = "o" if name.startswith("elmo") else "^"
            axis.scatter(x, y, 60, color=f"C{number % 6}", marker=marker, label=name)
        axis.set(xscale="log", xlabel="tokens/s on one core", title=TITLES[task])
        axis.grid()
    axes[0].set_ylabel("score, %")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=9)
    figure.savefig(picture)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=pathlib.Path, required=True, help="models and results")
    parser.add_argument("--data", type=pathlib.Path, help="train and test the probes on this data")
    parser.add_argument("--speed", type=pathlib.Path, help="measure the speed on this text")
    parser.add_argument("--repeats", type=int, default=3, help="turns of the speed")
    parser.add_argument("--report", type=pathlib.Path, help="print the tables, draw a picture")
    parser.add_argument("--encoders", nargs="+", choices=ENCODERS, default=list(ENCODERS))
    arguments = parser.parse_args()
    path = arguments.work / "results.json"

    def read():
        return json.loads(path.read_text()) if path.exists() else {}

    def keep(name, figures):
        results = read()
        results.setdefault(name, {}).update(figures)
        print(name, figures, flush=True)
        path.write_text(json.dumps(results, indent=1) + "\n")

    if arguments.data:
        tasks = {task: read_task(task, arguments.data) for task in READERS}
        wsd = arguments.data / "wsd"
        senses = (
            read_text(wsd / "semcor3.0" / "semcor.data.xml"),
            read_text(wsd / "Evaluation_Datasets" / "ALL" / "ALL.data.xml"),
        )
        for name in arguments.encoders:
            keep(name, measure_quality(name, tasks, senses, arguments.work))
    if arguments.speed:
        for name in arguments.encoders * arguments.repeats:
            figures = measure_speed(name, arguments.work, arguments.speed)
            keep(name, {"speed": merge_best(figures, read().get(name, {}).get("speed"))})
    if arguments.report:
        results = read()
        report({name: results[name] for name in arguments.encoders}, arguments.report)


if __name__ == "__main__":
    main()
