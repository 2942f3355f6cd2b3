"""Train a classifier of Korean film reviews (NSMC) on few or many labels, with and without ELMo.

    python examples/sentiment.py --data FOLDER --preset PRESET --seeds 1 2 3

FOLDER contains train.tsv, dev.tsv and test.tsv. A line has a label (0, 1, ...), a tab and the
text of a review. --tokenizer cuts the text into tokens, by default into the morphemes of Kiwi.
--preset takes a biLM that was trained on such tokens; without it only the baseline is trained.
The classifier is a biLSTM over word embeddings x_k, pooled over the tokens. ELMo joins as
[x_k; ELMo_k] at its input and [h_k; ELMo_k] at its output, with layer norm for each token: without
it layer 0 has the largest values and hides the contextual layers. --share trains on a share of the
reviews, drawn anew for each seed. Few reviews need small batches and more epochs: for 400 reviews
use --batch-size 16 --learning-rate 5e-3 --epochs 8. --vectors initialises the word embeddings from
a text file in the format of word2vec, GloVe or fastText; without it they start random.
experiments/train_vectors.py writes such a file. Runs on every Keras backend.
"""

import argparse
import collections
import pathlib

import keras
import numpy as np
from experiments.word_vectors import read_vectors
from keras import layers, ops
from keras.utils import pad_sequences
from tqdm import tqdm

import keras_elmo
from keras_elmo.tokenizers.words import TOKENIZERS

PADDING, UNKNOWN = 0, 1  # word ids; the ids of the vocabulary start at 2
CHARACTERS = 50  # ids per token, as in all released biLMs


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


def batches(reviews, size):
    """Return the indices of reviews of similar length in batches, in random order."""
    order = sorted(np.random.permutation(len(reviews)), key=lambda i: len(reviews[i]))
    starts = np.random.permutation(range(0, len(order), size))
    return [order[start : start + size] for start in starts]


def make_inputs(vocabulary, reviews):
    """Return word ids and character ids, padded."""
    ids = [[vocabulary.get(token, UNKNOWN) for token in review] for review in reviews]
    characters = keras_elmo.CharacterTokenizer(CHARACTERS)(reviews)
    return [pad_sequences(ids, padding="post"), ops.convert_to_numpy(characters)]


def make_vocabulary(reviews):
    """Return the id of each word, and the ids of words that occur once."""
    seen = collections.Counter(token for review in reviews for token in review)
    vocabulary = {word: id for id, word in enumerate(sorted(seen), start=UNKNOWN + 1)}
    return vocabulary, [id for word, id in vocabulary.items() if seen[word] == 1]


def build(n_words, elmo, n_classes, dimension=100, dropout=0.3):
    """Build the classifier; its first weights are the word embeddings."""
    words = keras.Input((None,), dtype="int32")
    characters = keras.Input((None, CHARACTERS), dtype="int32")
    mask = ops.not_equal(words, PADDING)  # passed explicitly: Concatenate loses it
    h = layers.Dropout(dropout)(layers.Embedding(n_words, dimension)(words))
    if elmo:
        representations = elmo(characters)
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
    return keras.Model([words, characters], classes)


def accuracy(model, vocabulary, reviews, labels):
    """Return the share of reviews whose label gets the highest probability."""
    right = 0
    for indices in batches(reviews, 128):
        found = model.predict_on_batch(make_inputs(vocabulary, [reviews[i] for i in indices]))
        right += (found.argmax(-1) == [labels[i] for i in indices]).sum()
    return right / len(reviews)


def fit(model, vocabulary, rare, train, dev, settings):
    """Train a classifier, and give it the weights of the epoch with the best accuracy on dev.

    ``rare`` are the ids of words that occur once. ``train`` and ``dev`` are reviews and labels.
    """
    reviews, labels = train
    n_steps = settings.epochs * -(-len(reviews) // settings.batch_size)
    rate = keras.optimizers.schedules.CosineDecay(settings.learning_rate, n_steps)
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy")
    best = -1
    for epoch in range(1, settings.epochs + 1):
        losses = []
        drawn = batches(reviews, settings.batch_size)
        for indices in tqdm(drawn, f"epoch {epoch}", leave=False):
            inputs = make_inputs(vocabulary, [reviews[i] for i in indices])
            # Half of the rare words become UNKNOWN, so that its embedding is trained.
            drop = np.isin(inputs[0], rare) & (np.random.random(inputs[0].shape) < 0.5)
            inputs[0][drop] = UNKNOWN
            losses.append(model.train_on_batch(inputs, np.array([labels[i] for i in indices])))
        on_dev = accuracy(model, vocabulary, *dev)
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}, dev accuracy {on_dev:.4f}", flush=True)
        if on_dev > best:
            best, weights = on_dev, model.get_weights()
    model.set_weights(weights)


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
    model = build(n_words, elmo, n_classes, dimension, settings.dropout)
    if vectors:
        words = next(x for x in model.layers if isinstance(x, layers.Embedding))
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
