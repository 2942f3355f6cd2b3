"""Train a classifier of Korean film reviews (NSMC) on few or many labels, with and without ELMo.

    python examples/sentiment.py --data FOLDER --preset PRESET --seeds 1 2 3

FOLDER contains train.tsv, dev.tsv and test.tsv. A line has a label (0, 1, ...), a tab and the text
of a review. --tokenizer cuts the text into tokens, by default into the morphemes of Kiwi. --preset
takes a biLM that was trained on such tokens; without it only the baseline is trained. The
classifier is a biLSTM over word embeddings x_k, pooled over the tokens. ELMo joins as [x_k; ELMo_k]
at its input and [h_k; ELMo_k] at its output. Layer norm scales the layers of each token, because
layer 0 has the largest values and would hide the contextual layers. --share trains on a share of
the reviews, drawn anew for each seed. Few reviews need small batches and more epochs: for 400
reviews use --batch-size 16 --learning-rate 5e-3 --epochs 8. --vectors initialises the word
embeddings from a text file in the format of word2vec, GloVe or fastText; without it they start
random. Runs on every Keras backend.
"""

import argparse
import pathlib

import keras
import numpy as np
from cached_layers import Batches, elmo_input, representations_of
from keras import layers, ops
from parts import JIT, accuracy, fraction, train
from word_vectors import PADDING, make_vocabulary, read_vectors, word_embedding, word_ids

import keras_elmo


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


def batches(vocabulary, reviews, labels, elmo=None, size=128, rare=(), seed=None):
    """Return batches of reviews of similar length, and their labels; a seed shuffles them."""
    labels = np.array(labels)

    def make_batch(indices, random):
        some = [reviews[i] for i in indices]
        ids = word_ids(some, vocabulary, rare, random)
        inputs = (ids, elmo_input(elmo, some)) if elmo else (ids,)
        return inputs, labels[indices]

    return Batches(make_batch, [*map(len, reviews)], range(len(reviews)), size, seed)


def build(embedding, elmo, n_classes, dropout=0.3):
    """Return the classifier."""
    words = keras.Input((None,), dtype="int32")
    inputs = [words]
    mask = ops.not_equal(words, PADDING)  # passed explicitly: Concatenate loses it
    h = layers.Dropout(dropout)(embedding(words))
    if elmo:
        representations = representations_of(elmo, inputs)
        at_input = keras_elmo.ScalarMix("token", dropout=0.5, l2=1e-3)
        h = layers.Concatenate()([h, at_input(representations, mask=mask)])
    h = layers.Bidirectional(layers.LSTM(150, return_sequences=True))(h, mask=mask)
    if elmo:
        # No dropout here: in training it would raise the maximum below, more so in long sentences.
        at_output = keras_elmo.ScalarMix("token", l2=1e-3)
        h = layers.Concatenate()([h, at_output(representations, mask=mask)])
    real = ops.expand_dims(ops.cast(mask, h.dtype), -1)
    mean = ops.sum(h * real, axis=1) / ops.sum(real, axis=1)
    pooled = layers.Concatenate()([mean, ops.max(h - 1e4 * (1 - real), axis=1)])
    classes = layers.Dense(n_classes, activation="softmax")(layers.Dropout(dropout)(pooled))
    return keras.Model(inputs, classes)


def train_and_score(settings, elmo, data, vectors, share, seed):
    """Return the accuracy on test of a classifier trained on a share of the reviews."""
    keras.utils.set_random_seed(seed)
    (reviews, labels), *others = data
    chosen = np.random.permutation(len(reviews))[: max(1, round(share * len(reviews)))]
    reviews, labels = [reviews[i] for i in chosen], [labels[i] for i in chosen]
    vocabulary, rare = make_vocabulary(reviews, vectors)
    embedding = word_embedding(vocabulary, 100, vectors)
    model = build(embedding, elmo, max(labels) + 1, settings.dropout)
    on_train = batches(vocabulary, reviews, labels, elmo, settings.batch_size, rare, seed)
    rate = keras.optimizers.schedules.CosineDecay(
        settings.learning_rate, settings.epochs * len(on_train)
    )
    optimizer = keras.optimizers.Adam(rate)
    model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=JIT)
    (on_dev, dev), (on_test, test) = ((batches(vocabulary, *x, elmo), x[1]) for x in others)
    train(model, on_train, lambda: accuracy(model, on_dev, dev), settings, measure="accuracy")
    return accuracy(model, on_test, test)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=pathlib.Path, required=True, help="folder of train.tsv, dev.tsv, test.tsv")
    add("--preset", help="biLM for these tokens: name, directory or .zip")
    add("--tokenizer", default="kiwi", help="WordTokenizer of the biLM, such as whitespace")
    add("--vectors", type=pathlib.Path, help="word vectors to initialise both sides with")
    add("--share", type=fraction, nargs="+", default=[1.0], help="shares of the training reviews")
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
    settings.patience = None  # train all epochs

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
