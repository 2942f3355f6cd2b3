"""Score ELMo on the Stanford Sentiment Treebank over seeds, places, layers and shares.

    python examples/experiments/sst5_runs.py --data DIRECTORY --elmo none
    python examples/experiments/sst5_runs.py --data DIRECTORY --elmo both --seeds 1 2 3

DIRECTORY has train.txt, dev.txt and test.txt: Penn Treebank trees, one per line, with a label from
0 to 4 on every node. Each phrase of the training trees is an example; dev and test are whole
sentences.

The classifier is a small biLSTM over word embeddings x_k, pooled over the tokens. --elmo puts
[x_k; ELMo_k] at the input, [h_k; ELMo_k] at the output, or both. The learning rate falls to 0 over
the epochs, and the epoch with the best dev score is tested.

The biLM is frozen, so the first run computes its layers, and all other runs read them from --cache.
The whole treebank takes about 2 GB with a biLM of width 256 and twice that with width 512; the
first run needs this space twice. --on-the-fly computes the layers inside the model. Runs on every
Keras backend.
"""

import argparse
import collections
import functools
import pathlib
import time

import keras
import nltk
import numpy as np
from cached_layers import LAYERS, Batches, elmo_places, layer_files, passes_per_epoch
from keras import layers, ops
from several_seeds import run_seeds
from word_vectors import PADDING, make_vocabulary, read_vectors, word_embedding, word_ids

import keras_elmo

# The biLM has read plain quotes and brackets; the treebank has Penn Treebank ones.
PLAIN = {"-LRB-": "(", "-RRB-": ")", "``": '"', "''": '"', "`": "'"}
QUICK_TREES, QUICK_EPOCHS = 40, 2

# Distinct phrases (tokens between spaces), a label for each, and the phrases of each tree.
Split = collections.namedtuple("Split", "name phrases labels trees")


def read_split(folder, name, limit=None):
    """Return a split: all phrases of the trees for train, whole sentences for dev and test."""
    with open(folder / f"{name}.txt", encoding="utf-8-sig") as file:
        parsed = [nltk.Tree.fromstring(line) for line in file if line.strip()][:limit]
    numbers, trees = {}, []
    for tree in parsed:
        parts = tree.subtrees() if name == "train" else [tree]
        pairs = [(" ".join(map(plain, part.leaves())), int(part.label())) for part in parts]
        trees.append([numbers.setdefault(pair, len(numbers)) for pair in pairs])
    phrases, labels = zip(*numbers)
    return Split(name, phrases, np.array(labels), trees)


def plain(token):
    return PLAIN.get(token, token.replace("\\/", "/").replace("\\*", "*"))


def words_of(phrases):
    return {word for phrase in phrases for word in phrase.split()}


@functools.lru_cache(maxsize=1)
def read_data(folder, quick, vectors_file):
    """Return the three splits, and the vectors of their words from the file."""
    limit = QUICK_TREES if quick else None
    splits = [read_split(folder, name, limit) for name in ("train", "dev", "test")]
    words = sorted(set().union(*(words_of(split.phrases) for split in splits)))
    return splits, read_vectors(vectors_file, words) if vectors_file else {}


def make_batch(vocabulary, rare, more_inputs, split, indices, random):
    """Return the inputs of some phrases, word ids and ``more_inputs``, and their labels."""
    phrases = [split.phrases[i].split() for i in indices]
    words = word_ids(phrases, vocabulary, rare, random)
    return {"words": words, **more_inputs(split.name, indices, phrases)}, split.labels[indices]


def make_more_inputs(settings, elmo, splits):
    """Return a function that makes the other inputs of a batch: none, character ids or layers."""
    if elmo is None:
        return lambda name, indices, phrases: {}
    if settings.on_the_fly:
        tokenize = keras_elmo.CharacterTokenizer(elmo.config.max_characters_per_token)
        return lambda name, indices, phrases: {
            "characters": ops.convert_to_numpy(tokenize(phrases))
        }
    files = layer_files(elmo, {split.name: split.phrases for split in splits}, settings.cache)
    return lambda name, indices, phrases: {"layers": files[name].gather(indices)["layers"]}


def cache_layers(settings):
    """Compute the layers that all runs with these settings read."""
    splits, _ = read_data(settings.data, settings.quick, settings.vectors)
    make_more_inputs(settings, keras_elmo.ElmoLayer.from_preset(settings.preset), splits)


def build(settings, embedding, elmo):
    """Return the classifier, and the mixes by place."""
    inputs = {"words": keras.Input((None,), dtype="int32", name="words")}
    # Pass the mask explicitly: Concatenate would replace it by ones, slicing would drop it.
    mask = ops.not_equal(inputs["words"], PADDING)
    representations = None
    if elmo is not None and settings.on_the_fly:
        shape = (None, elmo.config.max_characters_per_token)
        inputs["characters"] = keras.Input(shape, dtype="int32", name="characters")
        representations = elmo(inputs["characters"])
    elif elmo is not None:
        shape = (None, elmo.config.n_layers + 1, 2 * elmo.config.projection_dim)
        representations = inputs["layers"] = keras.Input(shape, name="layers")
    with_elmo, mixes = elmo_places(settings, representations, mask)

    x = with_elmo(layers.Dropout(settings.dropout)(embedding(inputs["words"])), "input")
    birnn = layers.Bidirectional(layers.LSTM(settings.units, return_sequences=True))
    # No dropout before the pool: in training its maximum would grow with the length.
    h = with_elmo(birnn(x, mask=mask), "output", dropout=0.0)
    real = ops.expand_dims(ops.cast(mask, h.dtype), -1)
    mean = ops.sum(h * real, axis=1) / ops.sum(real, axis=1)
    pooled = layers.Concatenate()([mean, ops.max(h - 1e4 * (1 - real), axis=1)])
    classes = layers.Dense(5, activation="softmax")(layers.Dropout(settings.dropout)(pooled))
    model = keras.Model(inputs, classes)
    return model, mixes


def train_and_score(settings, seed=1):
    """Train one classifier and return its accuracies, with facts about the training.

    Args:
        settings: namespace. The result of ``parse([...])``.
        seed: int. Seed for initial weights, dropout, order and the share of the training trees.

    Returns:
        Dict of ``dev`` and ``test``, the accuracies of the epoch with the best dev score;
        ``epochs``, ``seconds_per_epoch``, the ``backend``, training ``losses``, ``dev_by_epoch``,
        the number of training ``phrases`` and of trained ``parameters``, and ``layer_weights`` by
        place.
    """
    splits, vectors = read_data(settings.data, settings.quick, settings.vectors)
    train, dev, test = splits
    # Set the seed after the biLM is ready, so that runs with and without it draw equal numbers.
    elmo = None if settings.elmo == "none" else keras_elmo.ElmoLayer.from_preset(settings.preset)
    more_inputs = make_more_inputs(settings, elmo, splits)
    keras.utils.set_random_seed(seed)

    n_trees = max(1, round(settings.share * len(train.trees)))
    trees = np.random.permutation(len(train.trees))[:n_trees]
    chosen = np.unique(np.concatenate([train.trees[i] for i in trees]))
    whole = [train.phrases[train.trees[i][0]].split() for i in trees]
    vocabulary, rare = make_vocabulary(whole, vectors)
    model, mixes = build(settings, word_embedding(vocabulary, settings.dimension, vectors), elmo)

    def batches(split, chosen, seed=None):
        make = functools.partial(make_batch, vocabulary, rare, more_inputs, split)
        lengths = [len(phrase.split()) for phrase in split.phrases]
        passes = 1 if seed is None else passes_per_epoch(settings.share)
        return Batches(make, lengths, chosen, settings.batch_size, seed, passes)

    on_dev, on_test = (batches(split, np.concatenate(split.trees)) for split in (dev, test))
    on_train = batches(train, chosen, seed)
    epochs = QUICK_EPOCHS if settings.quick else settings.epochs
    rate = keras.optimizers.schedules.CosineDecay(settings.learning_rate, epochs * len(on_train))
    optimizer = keras.optimizers.Adam(rate)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    best = keras.callbacks.EarlyStopping(  # Never stops early; it restores the best epoch.
        "val_accuracy", mode="max", patience=epochs, restore_best_weights=True
    )
    start = time.monotonic()
    history = model.fit(
        on_train,
        validation_data=on_dev,
        epochs=epochs,
        callbacks=[best],
        shuffle=False,  # Batches shuffles.
        verbose=0 if settings.json else 2,
    ).history
    losses = history["loss"]
    seconds = (time.monotonic() - start) / len(losses)
    return {
        "dev": model.evaluate(on_dev, verbose=0, return_dict=True)["accuracy"],
        "test": model.evaluate(on_test, verbose=0, return_dict=True)["accuracy"],
        "epochs": len(losses),
        "seconds_per_epoch": seconds,
        "losses": losses,
        "backend": keras.backend.backend(),
        "dev_by_epoch": history["val_accuracy"],
        "phrases": len(chosen),
        "parameters": sum(int(np.prod(v.shape)) for v in model.trainable_variables),
        "layer_weights": {place: mix.layer_weights.tolist() for place, mix in mixes.items()},
    }


def parse(arguments=None):
    """Parse a command line, by default the one of this process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=pathlib.Path, required=True, help="folder of train.txt, dev.txt, test.txt")
    add("--elmo", choices=("none", "input", "output", "both"), default="both")
    add("--preset", default="elmo_small_en", help="biLM: a bundled name or a path")
    add("--layers", choices=LAYERS, default="all", help="all layers mixed, or one layer")
    add("--l2", type=float, default=1e-3, help="lambda of the mix: 1 or 0.001 in the paper")
    add("--on-the-fly", action="store_true", help="compute the biLM inside the model")
    add("--cache", type=pathlib.Path, default="sst5_layers", help="folder of the computed layers")
    add("--vectors", help="text file of word vectors; random ones without it")
    add("--dimension", type=int, default=100, help="width of random word vectors")
    add("--units", type=int, default=150, help="units of each LSTM")
    add("--dropout", type=float, default=0.5, help="dropout on x and on the pool")
    add("--learning-rate", type=float, default=1e-3)
    add("--batch-size", type=int, default=64, help="phrases in a batch")
    add("--epochs", type=int, default=5)
    add(
        "--share",
        type=float,
        default=1.0,
        help="share of the trees; an epoch repeats a small share",
    )
    add("--seeds", type=int, nargs="+", default=[1])
    add("--quick", action="store_true", help=f"{QUICK_TREES} trees a file, {QUICK_EPOCHS} epochs")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_seeds(parse(), train_and_score, "accuracy")
