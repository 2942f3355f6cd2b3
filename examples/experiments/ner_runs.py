"""Score ELMo on named entities over seeds, places, layers and shares of the data.

    python examples/experiments/ner_runs.py --train eng.train --dev eng.testa --test eng.testb
    python examples/experiments/ner_runs.py --train ... --dev ... --test ... --elmo none
    python examples/experiments/ner_runs.py --train ... --dev ... --test ... --seeds 1 2 3

A file has one token per line: first the token, last its tag in IOB1, IOB2 or BIOES. --token-column
and --tag-column choose other columns. conll.py describes the format.

The tagger has two biLSTM layers and a CRF over x_k: embeddings of the lower-cased words, and a CNN
over characters. --elmo puts [x_k; ELMo_k] at the input, [h_k; ELMo_k] at the output, or both. The
paper uses the input for named entities; the default sizes are from its appendix. The score is the
F1 of entities by seqeval on IOB2 tags, in its default mode, which is the mode of conlleval. The
epoch with the best dev score is tested.

The biLM is frozen, so the first run computes its layers, and all other runs read them from --cache.
--on-the-fly computes them inside the model. Runs on every Keras backend.
"""

import argparse
import collections
import functools
import pathlib
import time

import keras
import numpy as np
from cached_layers import LAYERS, Batches, elmo_places, layer_files, passes_per_epoch
from conll import IOB2, columns, read_columns, recode, tag_set
from keras import layers, ops
from seqeval.metrics import f1_score
from several_seeds import run_seeds
from word_vectors import (
    PADDING,
    lower,
    make_vocabulary,
    read_vectors,
    word_embedding,
    word_ids,
)

import keras_elmo

QUICK_SENTENCES, QUICK_EPOCHS = 40, 2
N_CHARACTERS = 25  # Input of the character CNN, begin and end marker included.

# Sentences as lists of tokens, and the tags of each in BIOES.
Split = collections.namedtuple("Split", "name sentences tags")


@functools.lru_cache(maxsize=1)
def read_data(paths, token_column, tag_column, quick, vectors_file):
    """Return the three splits, and the vectors of their words from the file."""
    limit = QUICK_SENTENCES if quick else None
    splits = [
        Split(name, *read_columns(path, token_column, tag_column, limit))
        for name, path in zip(("train", "dev", "test"), paths)
    ]
    words = sorted({word for split in splits for x in lower(split.sentences) for word in x})
    return splits, read_vectors(vectors_file, words) if vectors_file else {}


def read_splits(settings):
    """Return the result of ``read_data`` for these settings."""
    paths = settings.train, settings.dev, settings.test
    columns_read = settings.token_column, settings.tag_column
    return read_data(paths, *columns_read, settings.quick, settings.vectors)


def make_batch(known, rare, files, split, indices, random):
    """Return the inputs of some sentences, and their tags, -1 in the padding."""
    sentences = [split.sentences[i] for i in indices]
    tokenize = keras_elmo.CharacterTokenizer(known["max_characters"])
    inputs = {
        "words": word_ids(lower(sentences), known["words"], rare, random),
        "characters": ops.convert_to_numpy(tokenize(sentences)),
    }
    if files:
        inputs["layers"] = files[split.name].gather(indices)["layers"]
    numbers = {tag: n for n, tag in enumerate(known["tags"])}
    tags = np.full(inputs["words"].shape, -1, "int32")
    for row, i in zip(tags, indices):  # -1 also marks types that only dev or test has.
        row[: len(split.tags[i])] = [numbers.get(tag, -1) for tag in split.tags[i]]
    return inputs, tags


def sentence_layers(settings, splits, elmo):
    """Return a dict from split to its computed layers."""
    texts = {split.name: [" ".join(x) for x in split.sentences] for split in splits}
    return layer_files(elmo, texts, settings.cache)


def cache_layers(settings):
    """Compute the layers that all runs with these settings read."""
    splits, _ = read_splits(settings)
    sentence_layers(settings, splits, keras_elmo.ElmoLayer.from_preset(settings.preset))


def build(settings, embedding, elmo, known):
    """Return the model to train, a tagger with shared weights, and the mixes by place."""
    shapes = {"words": (None,), "characters": (None, known["max_characters"])}
    inputs = {name: keras.Input(x, dtype="int32", name=name) for name, x in shapes.items()}
    # Pass the mask explicitly: Concatenate would replace it by ones, slicing would drop it.
    mask = ops.not_equal(inputs["words"], PADDING)
    representations = None
    if elmo is not None and settings.on_the_fly:
        representations = elmo(inputs["characters"])
    elif elmo is not None:
        shape = (None, elmo.config.n_layers + 1, 2 * elmo.config.projection_dim)
        representations = inputs["layers"] = keras.Input(shape, name="layers")
    with_elmo, mixes = elmo_places(settings, representations, mask)

    letters = layers.Embedding(262, 16, name="characters_embedded")(
        inputs["characters"][:, :, :N_CHARACTERS]
    )
    letters = layers.Conv2D(128, (1, 3), padding="same", activation="relu")(letters)
    x = layers.Concatenate()([embedding(inputs["words"]), ops.max(letters, axis=2)])
    h = with_elmo(layers.Dropout(settings.dropout)(x), "input")
    for units in (settings.units, settings.units // 2):
        birnn = layers.Bidirectional(layers.LSTM(units, return_sequences=True))
        h = layers.Dropout(settings.dropout)(birnn(h, mask=mask))
    scores = layers.Dense(len(known["tags"]))(with_elmo(h, "output"))
    crf = keras_elmo.CRF()
    model = keras.Model(inputs, crf(scores))
    model.compile(keras.optimizers.Adam(settings.learning_rate, global_clipnorm=5.0), crf.loss)
    return model, keras.Model(inputs, crf.decode(scores, mask)), mixes


def train_and_score(settings, seed=1):
    """Train one tagger and return its F1 of entities, with facts about the training.

    Args:
        settings: namespace. The result of ``parse([...])``.
        seed: int. Seed for initial weights, dropout, order and the share of the training
            sentences.

    Returns:
        Dict of ``dev`` and ``test``, the F1 of the epoch with the best dev score; ``epochs``,
        ``seconds_per_epoch``, the ``backend``, training ``losses``, ``dev_by_epoch``, the number
        of training ``sentences`` and of trained ``parameters``, and ``layer_weights`` by place.
    """
    splits, vectors = read_splits(settings)
    train, dev, test = splits
    # Set the seed after the biLM is ready, so that runs with and without it draw equal numbers.
    elmo = None if settings.elmo == "none" else keras_elmo.ElmoLayer.from_preset(settings.preset)
    cached = elmo is not None and not settings.on_the_fly
    files = sentence_layers(settings, splits, elmo) if cached else {}
    keras.utils.set_random_seed(seed)

    n_chosen = max(1, round(settings.share * len(train.sentences)))
    chosen = np.random.permutation(len(train.sentences))[:n_chosen]
    words, rare = make_vocabulary(lower(train.sentences[i] for i in chosen), vectors)
    known = {
        "words": words,
        "tags": tag_set(train.tags),
        "max_characters": elmo.config.max_characters_per_token if elmo else 50,
    }
    embedding = word_embedding(words, settings.dimension, vectors)
    model, tagger, mixes = build(settings, embedding, elmo, known)

    def batches(split, chosen, seed=None):
        make = functools.partial(make_batch, known, rare, files, split)
        lengths = [len(sentence) for sentence in split.sentences]
        passes = 1 if seed is None else passes_per_epoch(settings.share)
        return Batches(make, lengths, chosen, settings.batch_size, seed, passes)

    def score(split):
        gold = [recode(tags, IOB2) for tags in split.tags]
        best = batches(split, np.arange(len(gold))).predict(tagger)
        rows = zip(best, split.sentences)
        found = [recode([known["tags"][n] for n in row[: len(x)]], IOB2) for row, x in rows]
        f1 = float(f1_score(gold, found, zero_division=0))
        return f1, columns(split.sentences, gold, found)

    def on_epoch_end(epoch, logs):
        f1 = score(dev)[0]
        # While F1 is 0, use the loss to measure progress.
        logs.update(dev_f1=f1, progress=f1 or -logs["loss"])

    on_dev = keras.callbacks.LambdaCallback(on_epoch_end=on_epoch_end)
    best = keras.callbacks.EarlyStopping(
        "progress", mode="max", patience=settings.patience, restore_best_weights=True
    )
    start = time.monotonic()
    history = model.fit(
        batches(train, chosen, seed),
        epochs=QUICK_EPOCHS if settings.quick else settings.epochs,
        callbacks=[on_dev, best],
        shuffle=False,  # Batches shuffles.
        verbose=0 if settings.json else 2,
    ).history
    losses = history["loss"]
    seconds = (time.monotonic() - start) / len(losses)
    scores = {}
    for split in (dev, test):
        scores[split.name], text = score(split)
        if settings.predictions:
            settings.predictions.mkdir(parents=True, exist_ok=True)
            path = settings.predictions / f"{split.name}-{seed}.conll"
            path.write_text(text, encoding="utf-8")
    return {
        **scores,
        "epochs": len(losses),
        "seconds_per_epoch": seconds,
        "losses": losses,
        "backend": keras.backend.backend(),
        "dev_by_epoch": history["dev_f1"],
        "sentences": len(chosen),
        "parameters": sum(int(np.prod(v.shape)) for v in model.trainable_variables),
        "layer_weights": {place: mix.layer_weights.tolist() for place, mix in mixes.items()},
    }


def parse(arguments=None):
    """Parse a command line, by default the one of this process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    for name in ("train", "dev", "test"):
        add(f"--{name}", type=pathlib.Path, required=True, help="column file")
    add("--token-column", type=int, help="column of the tokens, from 1")
    add("--tag-column", type=int, help="column of the tags, from 1")
    add("--elmo", choices=("none", "input", "output", "both"), default="input")
    add("--preset", default="elmo_small_en", help="biLM: a bundled name or a path")
    add("--layers", choices=LAYERS, default="all", help="all layers mixed, or one layer")
    add("--l2", type=float, default=0.1, help="lambda of the mix: 0.1 in the paper")
    add("--on-the-fly", action="store_true", help="compute the biLM inside the model")
    add("--cache", type=pathlib.Path, default="ner_layers", help="folder of the computed layers")
    add("--vectors", help="text file of word vectors; random ones without it")
    add("--dimension", type=int, default=100, help="width of random word vectors")
    add("--units", type=int, default=200, help="units of each lower LSTM; upper LSTMs have half")
    add("--dropout", type=float, default=0.5, help="dropout on x and on the biLSTMs")
    add("--learning-rate", type=float, default=1e-3)
    add("--batch-size", type=int, default=32, help="sentences in a batch")
    add("--epochs", type=int, default=30, help="largest number of epochs")
    add("--patience", type=int, default=5, help="epochs without a better dev F1")
    add(
        "--share",
        type=float,
        default=1.0,
        help="share of the sentences; an epoch repeats a small share",
    )
    add("--seeds", type=int, nargs="+", default=[1])
    add("--quick", action="store_true", help=f"{QUICK_SENTENCES} sentences, {QUICK_EPOCHS} epochs")
    add("--json", action="store_true", help="print one JSON object and nothing else")
    add("--predictions", type=pathlib.Path, help="folder for columns of token, gold tag, found tag")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_seeds(parse(), train_and_score, "F1")
