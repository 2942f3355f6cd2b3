"""Train a classifier of sentiment on the Stanford Sentiment Treebank, with ELMo or without.

    python examples/sst5.py --data FOLDER
    python examples/sst5.py --data FOLDER --no-elmo

FOLDER holds train.txt, dev.txt and test.txt: Penn Treebank trees, one a line, every node
labelled 0 to 4. Each labelled phrase of the training trees is an example; dev and test are
whole sentences. The classifier is a biLSTM over word embeddings x_k, pooled over the tokens,
with [x_k; ELMo_k] at its input and [h_k; ELMo_k] at its output; the frozen biLM is computed
as it goes. The learning rate falls to 0 over the epochs; the best epoch on dev is tested.
Runs on every Keras backend.
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

PADDING, UNKNOWN = 0, 1  # ids of words; those of the vocabulary follow
CHARACTERS = 50  # of a token, as in all released biLMs
# The biLM was trained on plain text, the treebank is written in Penn Treebank's way.
PLAIN = {"-LRB-": "(", "-RRB-": ")", "``": '"', "''": '"', "`": "'"}


def read_trees(path):
    """Return the trees of a file, one a line."""
    lines = path.read_text("utf-8-sig").split("\n")
    trees = [nltk.Tree.fromstring(line) for line in lines if line.strip()]
    if not trees:
        raise ValueError(f"Expected a tree or more. Received: path={str(path)!r}")
    return trees


def plain(tree):
    """Return the tokens of a tree in the way of plain text, and the label of its root."""
    tokens = [x.replace("\\/", "/").replace("\\*", "*") for x in tree.leaves()]
    return tuple(PLAIN.get(token, token) for token in tokens), int(tree.label())


def batches(phrases, size):
    """Return the indices of phrases of like length, a list a batch, in random order."""
    order = sorted(np.random.permutation(len(phrases)), key=lambda i: len(phrases[i]))
    starts = np.random.permutation(range(0, len(order), size))
    return [order[start : start + size] for start in starts]


def make_inputs(vocabulary, phrases):
    """Return the ids of words and of their characters, padded."""
    ids = [[vocabulary.get(token, UNKNOWN) for token in phrase] for phrase in phrases]
    characters = keras_elmo.CharacterTokenizer(CHARACTERS)(phrases)
    return [pad_sequences(ids, padding="post"), ops.convert_to_numpy(characters)]


def make_vocabulary(sentences):
    """Return the ids of the words, and those of the words that occur once."""
    seen = collections.Counter(token for sentence in sentences for token in sentence)
    vocabulary = {word: id for id, word in enumerate(sorted(seen), start=UNKNOWN + 1)}
    return vocabulary, [id for word, id in vocabulary.items() if seen[word] == 1]


def build(n_words, elmo, n_classes=5, dimension=100, dropout=0.3, layer_norm=False):
    """Return the classifier; its first weights are the word embeddings."""
    words = keras.Input((None,), dtype="int32")
    characters = keras.Input((None, CHARACTERS), dtype="int32")
    mask = ops.not_equal(words, PADDING)  # handed on by hand, as Concatenate would lose it
    h = layers.Dropout(dropout)(layers.Embedding(n_words, dimension)(words))
    if elmo:
        representations = elmo(characters)
        at_input = keras_elmo.ScalarMix(layer_norm, dropout=0.5, l2=1e-3)
        h = layers.Concatenate()([h, at_input(representations, mask=mask)])
    h = layers.Bidirectional(layers.LSTM(150, return_sequences=True))(h, mask=mask)
    if elmo:  # no dropout: the maximum below would grow with the length, in training alone
        at_output = keras_elmo.ScalarMix(layer_norm, l2=1e-3)
        h = layers.Concatenate()([h, at_output(representations, mask=mask)])
    real = ops.expand_dims(ops.cast(mask, h.dtype), -1)
    mean = ops.sum(h * real, axis=1) / ops.sum(real, axis=1)
    pooled = layers.Concatenate()([mean, ops.max(h - 1e4 * (1 - real), axis=1)])
    classes = layers.Dense(n_classes, activation="softmax")(layers.Dropout(dropout)(pooled))
    return keras.Model([words, characters], classes)


def accuracy(model, vocabulary, phrases, labels):
    """Return the share of the phrases whose label has the highest probability."""
    right = 0
    for indices in batches(phrases, 128):
        found = model.predict_on_batch(make_inputs(vocabulary, [phrases[i] for i in indices]))
        right += (found.argmax(-1) == [labels[i] for i in indices]).sum()
    return right / len(phrases)


def fit(model, vocabulary, rare, train, dev, settings):
    """Train a classifier, and leave it with the weights of its best epoch on dev.

    Args:
        model: What ``build`` returns.
        vocabulary: Ids by word.
        rare: Ids of the words that occur once.
        train: Phrases, and their labels.
        dev: The same.
        settings: With ``epochs``, ``batch_size`` and ``learning_rate``.
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
            # Rare words are unknown one time in two, which trains what that means.
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
    add("--elmo", action=argparse.BooleanOptionalAction, default=True, help="or without")
    add("--preset", default="elmo_small_en", help="of the biLM: a name, directory or .zip")
    add("--batch-size", type=int, default=128, help="phrases")
    add("--learning-rate", type=float, default=2e-3)
    add("--epochs", type=int, default=5)
    add("--seed", type=int, default=1)
    settings = parser.parse_args(arguments)
    keras.utils.set_random_seed(settings.seed)

    trees, dev, test = (
        read_trees(settings.data / f"{name}.txt") for name in ("train", "dev", "test")
    )
    # Distinct ones, in the order of the file.
    pairs = dict.fromkeys(plain(node) for tree in trees for node in tree.subtrees())
    vocabulary, rare = make_vocabulary(plain(tree)[0] for tree in trees)
    dev, test = (list(zip(*map(plain, split))) for split in (dev, test))

    elmo = keras_elmo.ElmoLayer.from_preset(settings.preset) if settings.elmo else None
    model = build(2 + len(vocabulary), elmo)
    fit(model, vocabulary, rare, list(zip(*pairs)), dev, settings)
    print(f"test accuracy {accuracy(model, vocabulary, *test):.4f}")


if __name__ == "__main__":
    main()
