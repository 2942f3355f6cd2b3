"""Train a classifier of Korean film reviews (NSMC) on few or many labels, with and without ELMo.

    python examples/sentiment.py --data FOLDER --preset PRESET --seeds 1 2 3

FOLDER contains train.tsv, dev.tsv and test.tsv. A line has a label (0, 1, ...), a tab and the
text of a review. --tokenizer cuts the text into tokens, by default into the morphemes of Kiwi.
--preset takes a biLM that was trained on such tokens; without it only the baseline is trained.
The classifier is the one of sst5.py, with layer norm for each token: without it layer 0 has the
largest values and hides the contextual layers. --share trains on a share of the reviews, drawn
anew for each seed. Few reviews need small batches and more epochs: for 400 reviews use
--batch-size 16 --learning-rate 5e-3 --epochs 8. --vectors initialises the word embeddings from a
text file in the format of word2vec, GloVe or fastText; without it they start random.
experiments/train_vectors.py writes such a file. Runs on every Keras backend.
"""

import argparse
import pathlib

import keras
import numpy as np
from experiments.word_vectors import read_vectors
from sst5 import accuracy, build, fit, make_vocabulary

import keras_elmo
from keras_elmo.tokenizers.words import TOKENIZERS


def read_reviews(path, tokenize):
    """Read a file; return the tokens of its reviews, and their labels."""
    reviews, labels = [], []
    for number, line in enumerate(path.read_text("utf-8-sig").split("\n"), start=1):
        label, tab, text = line.partition("\t")
        if not line.strip():
            continue
        if not (tab and label.isdecimal()):
            raise ValueError(
                "Expected lines of a label from 0 on, a tab and a text. "
                f"Received: line {number} of {path}: {line[:60]!r}"
            )
        if tokens := tokenize(text):
            reviews.append(tokens)
            labels.append(int(label))
    if not reviews:
        raise ValueError(f"Expected a review or more. Received: path={str(path)!r}")
    return reviews, labels


def train_and_score(settings, elmo, data, vectors, share, seed):
    """Return the accuracy on test of a classifier trained on a share of the reviews."""
    keras.utils.set_random_seed(seed)
    (reviews, labels), dev, test = data
    chosen = np.random.permutation(len(reviews))[: max(1, round(share * len(reviews)))]
    train = [reviews[i] for i in chosen], [labels[i] for i in chosen]

    vocabulary, rare = make_vocabulary([*train[0], list(vectors)])
    with_vector = [vocabulary[word] for word in vectors]
    rare = sorted(set(rare) - set(with_vector))
    dimension = len(next(iter(vectors.values()))) if vectors else 100
    n_words, n_classes = 2 + len(vocabulary), max(labels) + 1
    model = build(n_words, elmo, n_classes, dimension, settings.dropout, layer_norm="token")
    if vectors:
        words = next(x for x in model.layers if isinstance(x, keras.layers.Embedding))
        table = np.random.normal(0, np.std(list(vectors.values())), (n_words, dimension))
        table[with_vector] = list(vectors.values())
        words.set_weights([table])
    fit(model, vocabulary, rare, train, dev, settings)
    return accuracy(model, vocabulary, *test)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=pathlib.Path, required=True, help="folder of train.tsv, dev.tsv, test.tsv")
    add("--preset", help="biLM for these tokens: name, directory or .zip")
    add("--tokenizer", choices=TOKENIZERS, default="kiwi", help="tokenizer of the biLM")
    add("--vectors", type=pathlib.Path, help="word vectors to initialise both sides with")
    add("--share", type=float, nargs="+", default=[1.0], help="shares of the training reviews")
    add("--seeds", type=int, nargs="+", default=[1])
    add("--batch-size", type=int, default=64, help="reviews per batch")
    add("--learning-rate", type=float, default=2e-3)
    add("--epochs", type=int, default=5)
    add(
        "--dropout",
        type=float,
        default=0.5,
        help="dropout of the word embeddings and of the pooled vector",
    )
    settings = parser.parse_args(arguments)

    tokenize = keras_elmo.WordTokenizer(settings.tokenizer)
    data = [
        read_reviews(settings.data / f"{name}.tsv", tokenize) for name in ("train", "dev", "test")
    ]
    vectors = {}
    if settings.vectors:
        words = {token for reviews, _ in data for tokens in reviews for token in tokens}
        vectors = read_vectors(settings.vectors, words)
    sides = {"baseline": None}
    if settings.preset:
        sides["with ELMo"] = keras_elmo.ElmoLayer.from_preset(settings.preset)
    for share in settings.share:
        scores = {}
        for side, elmo in sides.items():
            for seed in settings.seeds:
                print(f"share {share:g}, {side}, seed {seed}")
                found = train_and_score(settings, elmo, data, vectors, share, seed)
                print(f"test accuracy {found:.4f}", flush=True)
                scores.setdefault(side, []).append(found)
        means = ", ".join(
            f"{side} {np.mean(x):.4f} +- {np.std(x, ddof=len(x) > 1):.4f}"
            for side, x in scores.items()
        )
        print(f"share {share:g}: {means}, seeds {settings.seeds}", flush=True)


if __name__ == "__main__":
    main()
