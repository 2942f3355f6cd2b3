"""Train the paper's sentiment classifier on the Stanford Sentiment Treebank, with or without ELMo.

    python examples/sst5.py --data FOLDER --vectors glove.txt
    python examples/sst5.py --data FOLDER --vectors glove.txt --no-elmo

FOLDER contains train.txt, dev.txt and test.txt: Penn Treebank trees, one per line, every node
labelled 0 to 4. The script trains on the sentences and on their phrases of --shortest tokens
or more; dev and test contain sentences only. The model is the biattentive classification network of
McCann et al. (2017): a ReLU layer, a biLSTM, attention of the sentence to itself, a biLSTM that
integrates the attended words, four kinds of pooling, and maxout layers. ELMo joins as
[x_k; ELMo_k] before the ReLU layer and [h_k; ELMo_k] after the first biLSTM. --vectors reads the
word embeddings from a word2vec text file, such as GloVe; without it they start random. The frozen
biLM runs inside the model; --cache computes its layers once instead. The epoch with the best
accuracy on dev is scored on test. Runs on every Keras backend.
"""

import pathlib

import keras
import nltk
import numpy as np
from cached_layers import Batches, elmo_input, open_elmo, representations_of
from keras import layers, ops
from parts import JIT, accuracy, make_parser, report, train
from word_vectors import PADDING, lower, read_words, word_embedding, word_ids

import keras_elmo

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


def make_inputs(vocabulary, phrases, elmo=None, rare=(), random=None):
    """Return word ids, and what ELMo reads."""
    ids = word_ids(lower(phrases), vocabulary, rare, random)
    return (ids, elmo_input(elmo, phrases)) if elmo else (ids,)


def batches(vocabulary, examples, elmo, size, rare=(), seed=None):
    """Return the batches of phrases and their labels, of similar length; a seed shuffles them."""
    phrases, labels = zip(*examples)

    def make_batch(indices, random):
        chosen = [phrases[i] for i in indices]
        inputs = make_inputs(vocabulary, chosen, elmo, rare, random)
        return inputs, np.array([labels[i] for i in indices])

    return Batches(make_batch, [*map(len, phrases)], range(len(phrases)), size, seed)


def maxout(x, units, pieces=4):
    """Return the largest of some linear layers, for each unit."""
    return ops.max(layers.Reshape((units, pieces))(layers.Dense(units * pieces)(x)), axis=-1)


def build(embedding, elmo, units=300, dropout=0.3):
    """Return the classifier. ELMo joins at the input, and after the first biLSTM."""
    words = keras.Input((None,), dtype="int32")
    inputs = [words]
    mask = ops.not_equal(words, PADDING)  # passed explicitly: Concatenate loses it
    representations = representations_of(elmo, inputs) if elmo else None

    def with_elmo(x, place):
        if not elmo:
            return x
        mix = keras_elmo.ScalarMix(dropout=0.5, l2=1e-3, name=place)
        return layers.Concatenate()([x, mix(representations, mask=mask)])

    def birnn(x):
        return layers.Bidirectional(layers.LSTM(units, return_sequences=True))(x, mask=mask)

    x = with_elmo(layers.Dropout(dropout)(embedding(words)), "at_input")
    x = layers.Dropout(dropout)(layers.Dense(units, activation="relu")(x))
    x = with_elmo(birnn(x), "at_output")
    # The words attend to the words of the same sentence.
    attended = layers.Attention()([x, x], mask=[mask, mask])
    h = birnn(layers.Concatenate()([x, x - attended, x * attended]))

    real = ops.expand_dims(ops.cast(mask, h.dtype), -1)
    weights = ops.softmax(layers.Dense(1)(h) - 1e4 * (1 - real), axis=1)
    pooled = [
        ops.max(h - 1e4 * (1 - real), axis=1),
        ops.min(h + 1e4 * (1 - real), axis=1),
        ops.sum(h * real, axis=1) / ops.sum(real, axis=1),
        ops.sum(h * weights, axis=1),
    ]
    h = layers.Dropout(dropout)(layers.Concatenate()(pooled))
    for width in (units, units // 2):
        h = layers.Dropout(dropout)(maxout(h, width))
    return keras.Model(inputs, layers.Dense(5, activation="softmax")(h))


def main(arguments=None):
    parser = make_parser(__doc__, epochs=5)
    add = parser.add_argument
    add("--data", type=pathlib.Path, required=True, help="folder of train.txt, dev.txt, test.txt")
    add("--shortest", type=int, default=4, help="tokens of the shortest phrase to train on")
    add("--units", type=int, default=300, help="units of each LSTM")
    parser.set_defaults(batch_size=64)
    settings = parser.parse_args(arguments)
    keras.utils.set_random_seed(settings.seed)

    trees = [read_trees(settings.data / f"{name}.txt") for name in ("train", "dev", "test")]
    sentences, dev, test = ([*map(plain, split)] for split in trees)
    phrases = (plain(node) for tree in trees[0] for node in tree.subtrees())
    long = [phrase for phrase in phrases if len(phrase[0]) >= settings.shortest]
    examples = [*dict.fromkeys([*long, *sentences])]  # each distinct phrase once
    everything = [tokens for tokens, _ in (*examples, *dev, *test)]
    training = lower(tokens for tokens, _ in sentences)
    vocabulary, rare, vectors = read_words(settings.vectors, training, lower(everything))

    elmo = open_elmo(settings.preset, everything, settings.cache)
    model = build(word_embedding(vocabulary, 100, vectors), elmo, settings.units)
    on_train = batches(vocabulary, examples, elmo, settings.batch_size, rare, settings.seed)
    on_dev, on_test = (batches(vocabulary, split, elmo, 128) for split in (dev, test))
    steps = settings.epochs * len(on_train)
    rate = keras.optimizers.schedules.CosineDecay(settings.learning_rate, steps)
    optimizer = keras.optimizers.Adam(rate, global_clipnorm=5.0)
    model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=JIT)
    dev_labels, test_labels = ([label for _, label in split] for split in (dev, test))

    def score():
        return accuracy(model, on_dev, dev_labels)

    facts = train(model, on_train, score, settings, measure="accuracy")
    report(settings, model, test=accuracy(model, on_test, test_labels), **facts)


if __name__ == "__main__":
    main()
