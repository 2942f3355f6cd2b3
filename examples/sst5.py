"""Train a sentiment classifier on the Stanford Sentiment Treebank, with or without ELMo.

    python examples/sst5.py --data FOLDER
    python examples/sst5.py --data FOLDER --no-elmo

FOLDER contains train.txt, dev.txt and test.txt: Penn Treebank trees, one per line, every node
labelled 0 to 4. Every labelled phrase of the training trees is an example; dev and test use whole
sentences. The classifier is a biLSTM over word embeddings x_k, pooled over the tokens. ELMo joins
as [x_k; ELMo_k] at its input and [h_k; ELMo_k] at its output. The frozen biLM runs inside the
model. The learning rate falls to 0 over the epochs. The epoch with the best accuracy on dev is
scored on test. Runs on every Keras backend.
"""

import argparse
import collections
import pathlib

import keras
import nltk
import numpy as np
from keras import layers, ops
from keras.utils import pad_sequences
from tqdm import tqdm

import keras_elmo

PADDING, UNKNOWN = 0, 1  # word ids; the ids of the vocabulary start at 2
CHARACTERS = 50  # ids per token, as in all released biLMs
# The treebank escapes brackets and quotes; the biLM was trained on plain ones.
PLAIN = {"-LRB-": "(", "-RRB-": ")", "``": '"', "''": '"', "`": "'"}


def read_trees(path):
    """Read the trees of a file, one per line."""
    lines = path.read_text("utf-8-sig").split("\n")
    trees = [nltk.Tree.fromstring(line) for line in lines if line.strip()]
    if not trees:
        raise ValueError(f"Expected a tree or more. Received: path={str(path)!r}")
    return trees


def plain(tree):
    """Return the tokens of a tree with plain brackets and quotes, and the label of its root."""
    tokens = [x.replace("\\/", "/").replace("\\*", "*") for x in tree.leaves()]
    return tuple(PLAIN.get(token, token) for token in tokens), int(tree.label())


def batches(phrases, size):
    """Return the indices of phrases of similar length in batches, in random order."""
    order = sorted(np.random.permutation(len(phrases)), key=lambda i: len(phrases[i]))
    starts = np.random.permutation(range(0, len(order), size))
    return [order[start : start + size] for start in starts]


def make_inputs(vocabulary, phrases):
    """Return word ids and character ids, padded."""
    ids = [[vocabulary.get(token, UNKNOWN) for token in phrase] for phrase in phrases]
    characters = keras_elmo.CharacterTokenizer(CHARACTERS)(phrases)
    return [pad_sequences(ids, padding="post"), ops.convert_to_numpy(characters)]


def make_vocabulary(sentences):
    """Return the id of each word, and the ids of words that occur once."""
    seen = collections.Counter(token for sentence in sentences for token in sentence)
    vocabulary = {word: id for id, word in enumerate(sorted(seen), start=UNKNOWN + 1)}
    return vocabulary, [id for word, id in vocabulary.items() if seen[word] == 1]


def build(n_words, elmo, n_classes=5, dimension=100, dropout=0.3, layer_norm=False):
    """Build the classifier; its first weights are the word embeddings."""
    words = keras.Input((None,), dtype="int32")
    characters = keras.Input((None, CHARACTERS), dtype="int32")
    mask = ops.not_equal(words, PADDING)  # passed explicitly: Concatenate loses it
    h = layers.Dropout(dropout)(layers.Embedding(n_words, dimension)(words))
    if elmo:
        representations = elmo(characters)
        at_input = keras_elmo.ScalarMix(layer_norm, dropout=0.5, l2=1e-3)
        h = layers.Concatenate()([h, at_input(representations, mask=mask)])
    h = layers.Bidirectional(layers.LSTM(150, return_sequences=True))(h, mask=mask)
    if (
        elmo
    ):  # No dropout here: in training it would raise the maximum below, more so in long sentences.
        at_output = keras_elmo.ScalarMix(layer_norm, l2=1e-3)
        h = layers.Concatenate()([h, at_output(representations, mask=mask)])
    real = ops.expand_dims(ops.cast(mask, h.dtype), -1)
    mean = ops.sum(h * real, axis=1) / ops.sum(real, axis=1)
    pooled = layers.Concatenate()([mean, ops.max(h - 1e4 * (1 - real), axis=1)])
    classes = layers.Dense(n_classes, activation="softmax")(layers.Dropout(dropout)(pooled))
    return keras.Model([words, characters], classes)


def accuracy(model, vocabulary, phrases, labels):
    """Return the share of phrases whose label gets the highest probability."""
    right = 0
    for indices in batches(phrases, 128):
        found = model.predict_on_batch(make_inputs(vocabulary, [phrases[i] for i in indices]))
        right += (found.argmax(-1) == [labels[i] for i in indices]).sum()
    return right / len(phrases)


def fit(model, vocabulary, rare, train, dev, settings):
    """Train a classifier, and give it the weights of the epoch with the best accuracy on dev.

    Args:
        model: keras.Model. The classifier from ``build``.
        vocabulary: dict. The id of each word.
        rare: list of int. Ids of words that occur once.
        train: pair. Training phrases and their labels.
        dev: pair. Sentences to choose the epoch with, and their labels.
        settings: object with ``epochs``, ``batch_size`` and ``learning_rate``.
    """
    phrases, labels = train
    n_steps = settings.epochs * -(-len(phrases) // settings.batch_size)
    rate = keras.optimizers.schedules.CosineDecay(settings.learning_rate, n_steps)
    model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy")
    best = -1
    for epoch in range(1, settings.epochs + 1):
        losses = []
        drawn = batches(phrases, settings.batch_size)
        for indices in tqdm(drawn, f"epoch {epoch}", leave=False):
            inputs = make_inputs(vocabulary, [phrases[i] for i in indices])
            # Half of the rare words become UNKNOWN, so that its embedding is trained.
            drop = np.isin(inputs[0], rare) & (np.random.random(inputs[0].shape) < 0.5)
            inputs[0][drop] = UNKNOWN
            losses.append(model.train_on_batch(inputs, np.array([labels[i] for i in indices])))
        on_dev = accuracy(model, vocabulary, *dev)
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}, dev accuracy {on_dev:.4f}", flush=True)
        if on_dev > best:
            best, weights = on_dev, model.get_weights()
    model.set_weights(weights)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=pathlib.Path, required=True, help="folder of train.txt, dev.txt, test.txt")
    add("--elmo", action=argparse.BooleanOptionalAction, default=True, help="use ELMo or not")
    add("--preset", default="elmo_small_en", help="biLM: name, directory or .zip")
    add("--batch-size", type=int, default=128, help="phrases per batch")
    add("--learning-rate", type=float, default=2e-3)
    add("--epochs", type=int, default=5)
    add("--seed", type=int, default=1)
    settings = parser.parse_args(arguments)
    keras.utils.set_random_seed(settings.seed)

    trees, dev, test = (
        read_trees(settings.data / f"{name}.txt") for name in ("train", "dev", "test")
    )
    # Keep each distinct phrase once, in the order of the file.
    pairs = dict.fromkeys(plain(node) for tree in trees for node in tree.subtrees())
    vocabulary, rare = make_vocabulary(plain(tree)[0] for tree in trees)
    dev, test = (list(zip(*map(plain, split))) for split in (dev, test))

    elmo = keras_elmo.ElmoLayer.from_preset(settings.preset) if settings.elmo else None
    model = build(2 + len(vocabulary), elmo)
    fit(model, vocabulary, rare, list(zip(*pairs)), dev, settings)
    print(f"test accuracy {accuracy(model, vocabulary, *test):.4f}")


if __name__ == "__main__":
    main()
