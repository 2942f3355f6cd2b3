"""Train a model of entailment, or another relation of two sentences, with or without ELMo.

    python examples/entailment.py --train train.tsv --dev dev.tsv --test test.tsv
    python examples/entailment.py --train train.tsv --dev dev.tsv --test test.tsv --no-elmo

A file has one pair per line: label, sentence and sentence, separated by tabs. If the first line
names the columns, the script finds them by name; it knows the names of SICK, SNLI and MultiNLI.
It skips pairs labelled "-". The model is a small ESIM (Chen et al., 2017): a biLSTM, attention
between the sentences, a second biLSTM, then the mean and maximum over tokens. --elmo adds
[x_k; ELMo_k] at the input of the first biLSTM, or [h_k; ELMo_k] at its output, or both. At the
output the attention reads ELMo too. --vectors reads the word embeddings from a word2vec text file,
such as GloVe. The frozen biLM runs inside the model; --cache computes its layers once instead. The
script keeps the epoch with the best accuracy on --dev. Runs on every Keras backend.
"""

import argparse
import collections
import pathlib

import keras
import numpy as np
from experiments.cached_layers import StoredLayers, open_elmo, representations_of, write_scores
from experiments.word_vectors import read_vectors, word_embedding
from keras import layers, ops
from keras.utils import pad_sequences
from tqdm import tqdm

import keras_elmo

PADDING, UNKNOWN = 0, 1  # word ids; the ids of the vocabulary start at 2
CHARACTERS = 50  # ids per token, as in all released biLMs
LABELS = "label", "gold_label", "entailment_label", "entailment_judgment"
SENTENCES = ("sentence1", "sentence_A"), ("sentence2", "sentence_B")


def read_pairs(path):
    """Read a file; return its pairs as lists of tokens, and their labels."""
    rows = [line.rstrip("\r").split("\t") for line in path.read_text("utf-8-sig").split("\n")]
    named = [[rows[0].index(x) for x in names if x in rows[0]] for names in (LABELS, *SENTENCES)]
    columns = [found[0] for found in named] if all(named) else [0, 1, 2]
    tokenize = keras_elmo.WordTokenizer("penn")  # the tokenizer of the biLM's training text
    pairs, labels = [], []
    for number, row in enumerate(rows, start=1):
        if row == [""] or (all(named) and number == 1):
            continue
        fields = [row[i].strip() for i in columns] if len(row) > max(columns) else [""]
        if not all(fields) or (not all(named) and len(row) > 3):
            raise ValueError(
                "Expected a label and two sentences with tabs between, or a first line that names "
                f"such columns. Received: line {number} of {path}: {chr(9).join(row)[:60]!r}"
            )
        if fields[0] != "-":  # "-" means that the annotators did not agree
            pairs.append(tuple(map(tokenize, fields[1:])))
            labels.append(fields[0])
    if not pairs:
        raise ValueError(f"Expected a pair or more. Received: path={str(path)!r}")
    return pairs, labels


def batches(pairs, size=32):
    """Return the indices of pairs of similar length in batches, in random order."""
    order = sorted(np.random.permutation(len(pairs)), key=lambda i: sum(map(len, pairs[i])))
    starts = np.random.permutation(range(0, len(order), size))
    return [order[start : start + size] for start in starts]


def make_inputs(vocabulary, pairs, elmo=None):
    """Return word ids, character ids and stored layers of the first sentences, then the second."""
    inputs = []
    for sentences in zip(*pairs):
        ids = [[vocabulary.get(token.lower(), UNKNOWN) for token in x] for x in sentences]
        characters = keras_elmo.CharacterTokenizer(CHARACTERS)(sentences)
        inputs += [pad_sequences(ids, padding="post"), ops.convert_to_numpy(characters)]
        if isinstance(elmo, StoredLayers):
            inputs.append(elmo.inputs(sentences))
    return inputs


def build(vocabulary, n_classes, elmo, places, vectors=None):
    """Return the model, and its mixes by place."""
    mixes = {
        place: keras_elmo.ScalarMix(dropout=0.5, l2=1e-3, name=f"at_{place}")
        for place in ("input", "output")
        if elmo and places in (place, "both")
    }
    # Both sentences share these layers and their weights.
    embedding, dropout = word_embedding(vocabulary, 100, vectors), layers.Dropout(0.3)
    narrow = layers.Dense(150, activation="relu")
    encoder, composer = (
        layers.Bidirectional(layers.LSTM(150, return_sequences=True)) for _ in range(2)
    )

    inputs, encoded = [], []
    for _ in range(2):
        words = keras.Input((None,), dtype="int32")
        characters = keras.Input((None, CHARACTERS), dtype="int32")
        mask = ops.not_equal(words, PADDING)  # passed explicitly: Concatenate loses it
        inputs += [words, characters]
        representations = representations_of(elmo, characters, inputs) if elmo else None
        h = dropout(embedding(words))
        if "input" in mixes:
            h = layers.Concatenate()([h, mixes["input"](representations, mask=mask)])
        h = encoder(h, mask=mask)
        if "output" in mixes:
            h = layers.Concatenate()([h, mixes["output"](representations, mask=mask)])
        encoded.append((h, mask))

    pooled = []
    for (h, mask), (other, other_mask) in (encoded, encoded[::-1]):
        aligned = layers.Attention()([h, other], mask=[mask, other_mask])
        enhanced = layers.Concatenate()([h, aligned, h - aligned, h * aligned])
        v = composer(dropout(narrow(enhanced)), mask=mask)
        real = ops.expand_dims(ops.cast(mask, v.dtype), -1)
        pooled += [ops.sum(v * real, axis=1) / ops.sum(real, axis=1)]
        pooled += [ops.max(v - 1e4 * (1 - real), axis=1)]
    h = layers.Dense(150, activation="tanh")(dropout(layers.Concatenate()(pooled)))
    classes = layers.Dense(n_classes, activation="softmax")(dropout(h))
    return keras.Model(inputs, classes), mixes


def accuracy(model, vocabulary, classes, pairs, labels, elmo=None):
    """Return the share of pairs whose label gets the highest probability."""
    right = 0
    for indices in batches(pairs, 128):
        inputs = make_inputs(vocabulary, [pairs[i] for i in indices], elmo)
        found = model.predict_on_batch(inputs)
        right += sum(classes[n] == labels[i] for n, i in zip(found.argmax(-1), indices))
    return right / len(pairs)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    for name in ("train", "dev", "test"):
        add(f"--{name}", type=pathlib.Path, required=True, help="file of pairs, separated by tabs")
    add("--elmo", choices=("input", "output", "both"), default="both", help="where ELMo joins")
    add("--no-elmo", dest="elmo", action="store_const", const=None, help="leave ELMo out")
    add("--preset", default="elmo_small_en", help="biLM: name, directory or .zip")
    add("--vectors", type=pathlib.Path, help="word2vec text file for the word embeddings")
    add("--cache", type=pathlib.Path, help="folder for the biLM's layers, computed once")
    add("--batch-size", type=int, default=32, help="pairs per batch")
    add("--learning-rate", type=float, default=1e-3)
    add("--epochs", type=int, default=20, help="largest number of epochs")
    add(
        "--patience",
        type=int,
        default=3,
        help="stop after this many epochs without a better accuracy",
    )
    add("--seed", type=int, default=1)
    add("--scores", type=pathlib.Path, help="JSON file to write the accuracy on test to")
    settings = parser.parse_args(arguments)
    keras.utils.set_random_seed(settings.seed)

    (pairs, labels), dev, test = map(read_pairs, (settings.train, settings.dev, settings.test))
    classes = sorted(set(labels))
    seen = collections.Counter(x.lower() for pair in pairs for sentence in pair for x in sentence)
    everything = [x for some in (pairs, dev[0], test[0]) for pair in some for x in pair]
    every_word = {token.lower() for sentence in everything for token in sentence}
    vectors = read_vectors(settings.vectors, every_word) if settings.vectors else {}
    # Words that occur once and have no vector stay UNKNOWN, so that its embedding is trained.
    words = sorted({word for word in seen if seen[word] > 1} | {*vectors})
    vocabulary = {word: id for id, word in enumerate(words, start=UNKNOWN + 1)}
    elmo = open_elmo(settings.preset, everything, settings.cache) if settings.elmo else None
    model, mixes = build(vocabulary, len(classes), elmo, settings.elmo, vectors)
    optimizer = keras.optimizers.Adam(settings.learning_rate, global_clipnorm=5.0)
    model.compile(optimizer, "sparse_categorical_crossentropy")

    best = -1
    for epoch in range(1, settings.epochs + 1):
        losses = []
        for indices in tqdm(batches(pairs, settings.batch_size), f"epoch {epoch}", leave=False):
            inputs = make_inputs(vocabulary, [pairs[i] for i in indices], elmo)
            targets = np.array([classes.index(labels[i]) for i in indices])
            losses.append(model.train_on_batch(inputs, targets))
        on_dev = accuracy(model, vocabulary, classes, *dev, elmo)
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}, dev accuracy {on_dev:.4f}", flush=True)
        if on_dev > best:
            best, best_epoch, weights = on_dev, epoch, model.get_weights()
        elif epoch == best_epoch + settings.patience:
            break
    model.set_weights(weights)
    for place, mix in mixes.items():
        print(f"layer weights at the {place}: {np.round(mix.layer_weights, 3)}")
    on_test = accuracy(model, vocabulary, classes, *test, elmo)
    print(f"test accuracy {on_test:.4f}")
    if settings.scores:
        write_scores(settings.scores, on_test, model)


if __name__ == "__main__":
    main()
