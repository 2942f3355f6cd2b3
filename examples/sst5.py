"""Train the paper's sentiment classifier on the Stanford Sentiment Treebank, with or without ELMo.

    python examples/sst5.py --data FOLDER --vectors glove.txt
    python examples/sst5.py --data FOLDER --vectors glove.txt --no-elmo

FOLDER contains train.txt, dev.txt and test.txt: Penn Treebank trees, one per line, every node
labelled 0 to 4. The training examples are the sentences, and their phrases of --shortest tokens or
more; dev and test use sentences. The model is the biattentive classification network of
McCann et al. (2017): a ReLU layer, a biLSTM, attention of the sentence to itself, a biLSTM that
integrates the attended words, four kinds of pooling, and maxout layers. ELMo joins as
[x_k; ELMo_k] before the ReLU layer and [h_k; ELMo_k] after the first biLSTM. --vectors reads the
word embeddings from a word2vec text file, such as GloVe; without it they start random. The frozen
biLM runs inside the model; --cache computes its layers once instead. The epoch with the best
accuracy on dev is scored on test. Runs on every Keras backend.
"""

import argparse
import pathlib

import keras
import nltk
import numpy as np
from experiments.cached_layers import (
    Batches,
    StoredLayers,
    open_elmo,
    representations_of,
    write_scores,
)
from experiments.word_vectors import (
    PADDING,
    make_vocabulary,
    read_vectors,
    word_embedding,
    word_ids,
)
from keras import layers, ops

import keras_elmo

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


def make_inputs(vocabulary, phrases, elmo=None, rare=(), random=None):
    """Return word ids, and what ELMo reads: stored layers, or character ids."""
    ids = word_ids([[x.lower() for x in phrase] for phrase in phrases], vocabulary, rare, random)
    if isinstance(elmo, StoredLayers):
        return ids, elmo.inputs(phrases)
    if elmo:
        return ids, ops.convert_to_numpy(keras_elmo.CharacterTokenizer(CHARACTERS)(phrases))
    return (ids,)


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
    """Return the classifier, and its mixes: at the input, and after the first biLSTM."""
    words = keras.Input((None,), dtype="int32")
    inputs, mixes, representations = [words], [], None
    mask = ops.not_equal(words, PADDING)  # passed explicitly: Concatenate loses it
    if isinstance(elmo, StoredLayers):
        representations = representations_of(elmo, None, inputs)
    elif elmo:
        inputs.append(keras.Input((None, CHARACTERS), dtype="int32"))
        representations = elmo(inputs[-1])

    def with_elmo(x, place):
        if not elmo:
            return x
        mixes.append(keras_elmo.ScalarMix(dropout=0.5, l2=1e-3, name=place))
        return layers.Concatenate()([x, mixes[-1](representations, mask=mask)])

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
    return keras.Model(inputs, layers.Dense(5, activation="softmax")(h)), mixes


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=pathlib.Path, required=True, help="folder of train.txt, dev.txt, test.txt")
    add("--elmo", action=argparse.BooleanOptionalAction, default=True, help="use ELMo or not")
    add("--preset", default="elmo_small_en", help="biLM: name, directory or .zip")
    add("--vectors", type=pathlib.Path, help="word2vec text file for the word embeddings")
    add("--cache", type=pathlib.Path, help="folder for the biLM's layers, computed once")
    add("--shortest", type=int, default=4, help="tokens of the shortest phrase to train on")
    add("--units", type=int, default=300, help="units of each LSTM")
    add("--batch-size", type=int, default=64, help="phrases per batch")
    add("--learning-rate", type=float, default=1e-3)
    add("--epochs", type=int, default=5)
    add("--seed", type=int, default=1)
    add("--scores", type=pathlib.Path, help="JSON file to write the accuracy on test to")
    settings = parser.parse_args(arguments)
    keras.utils.set_random_seed(settings.seed)

    trees = [read_trees(settings.data / f"{name}.txt") for name in ("train", "dev", "test")]
    sentences, dev, test = ([*map(plain, split)] for split in trees)
    phrases = (plain(node) for tree in trees[0] for node in tree.subtrees())
    long = [phrase for phrase in phrases if len(phrase[0]) >= settings.shortest]
    train = [*dict.fromkeys([*long, *sentences])]  # each distinct phrase once
    everything = [tokens for tokens, _ in (*train, *dev, *test)]
    words = {x.lower() for tokens in everything for x in tokens}
    vectors = read_vectors(settings.vectors, words) if settings.vectors else {}
    vocabulary, rare = make_vocabulary(([x.lower() for x in s] for s, _ in sentences), vectors)

    elmo = open_elmo(settings.preset, everything, settings.cache) if settings.elmo else None
    model, mixes = build(word_embedding(vocabulary, 100, vectors), elmo, settings.units)
    on_train = batches(vocabulary, train, elmo, settings.batch_size, rare, settings.seed)
    on_dev, on_test = (batches(vocabulary, split, elmo, 128) for split in (dev, test))
    steps = settings.epochs * len(on_train)
    rate = keras.optimizers.schedules.CosineDecay(settings.learning_rate, steps)
    optimizer = keras.optimizers.Adam(rate, global_clipnorm=5.0)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    best = keras.callbacks.EarlyStopping(  # It never stops early; it restores the best epoch.
        "val_accuracy", mode="max", patience=settings.epochs, restore_best_weights=True
    )
    model.fit(
        on_train, validation_data=on_dev, epochs=settings.epochs, callbacks=[best], shuffle=False
    )
    for mix in mixes:
        print(f"layer weights {mix.name}: {np.round(mix.layer_weights, 3)}")
    accuracy = model.evaluate(on_test, verbose=0, return_dict=True)["accuracy"]
    print(f"test accuracy {accuracy:.4f}")
    if settings.scores:
        write_scores(settings.scores, accuracy, model)


if __name__ == "__main__":
    main()
