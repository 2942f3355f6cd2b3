"""Classify the relation of two sentences, such as entailment, with or without ELMo.

    python examples/entailment.py --train train.tsv --dev dev.tsv --test test.tsv
    python examples/entailment.py --train train.tsv --dev dev.tsv --test test.tsv --no-elmo

A file has one pair per line: a label and two sentences, separated by tabs. If the first line names
the columns as SICK, SNLI and MultiNLI do, the script finds them by name. It skips pairs with the
label "-". The model is a small ESIM (Chen et al., 2017): a biLSTM, attention between the sentences,
a second biLSTM, then the mean and maximum over tokens. --place adds [x_k; ELMo_k] at the input of
the first biLSTM, or [h_k; ELMo_k] at its output, or both. At the output the attention reads ELMo
too. --vectors reads the word embeddings from a word2vec text file, such as GloVe; without it they
start random. The frozen biLM runs inside the model; --cache computes its layers once instead. The
script keeps the epoch with the best accuracy on --dev. Runs on every Keras backend.
"""

import pathlib

import keras
import numpy as np
from cached_layers import Batches, elmo_input, open_elmo, representations_of
from keras import layers, ops
from parts import JIT, accuracy, make_parser, report, train
from word_vectors import PADDING, lower, read_words, word_embedding, word_ids

import keras_elmo

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


def make_inputs(vocabulary, pairs, elmo=None, rare=(), random=None):
    """Return word ids and what ELMo reads, of the first sentences, then of the second."""
    inputs = []
    for sentences in zip(*pairs):
        inputs.append(word_ids(lower(sentences), vocabulary, rare, random))
        inputs += [elmo_input(elmo, sentences)] if elmo else []
    return tuple(inputs)


def batches(known, pairs, labels, elmo=None, size=128, rare=(), seed=None):
    """Return batches of pairs of similar length, and their labels; a seed shuffles them."""
    vocabulary, classes = known
    # Labels that training does not have are never found.
    numbers = np.array([classes.index(x) if x in classes else -1 for x in labels])

    def make_batch(indices, random):
        some = [pairs[i] for i in indices]
        return make_inputs(vocabulary, some, elmo, rare, random), numbers[indices]

    lengths = [sum(map(len, pair)) for pair in pairs]
    return Batches(make_batch, lengths, range(len(pairs)), size, seed), numbers


def build(vocabulary, n_classes, elmo, places, vectors=None, l2=1e-3, layer=None):
    """Return the model. ``places`` says where ELMo joins: at the input, the output, or both.

    ``l2`` is the lambda of the mixes; ``layer`` is the only layer of ELMo, None for all.
    """
    mixes = {
        place: keras_elmo.ScalarMix(dropout=0.5, l2=l2, name=f"at_{place}")
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
        inputs.append(words)
        mask = ops.not_equal(words, PADDING)  # passed explicitly: Concatenate loses it
        representations = representations_of(elmo, inputs) if elmo else None
        if elmo and layer is not None:
            representations = ops.expand_dims(representations[:, :, layer], axis=2)
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
    return keras.Model(inputs, classes)


def main(arguments=None):
    parser = make_parser(__doc__, epochs=20, patience=3)
    add = parser.add_argument
    for name in ("train", "dev", "test"):
        add(f"--{name}", type=pathlib.Path, required=True, help="file of pairs, separated by tabs")
    add("--place", choices=("input", "output", "both"), default="both", help="where ELMo joins")
    add("--layer", type=int, help="the only layer of ELMo: 0 has no context, -1 is the top")
    add("--l2", type=float, default=1e-3, help="lambda * ||w||^2 of the layer weights")
    settings = parser.parse_args(arguments)
    keras.utils.set_random_seed(settings.seed)

    splits = [read_pairs(path) for path in (settings.train, settings.dev, settings.test)]
    sentences = [[x for pair in pairs for x in pair] for pairs, _ in splits]
    everything = [x for some in sentences for x in some]
    given = lower(sentences[0]), lower(everything)
    vocabulary, rare, vectors = read_words(settings.vectors, *given)
    known = vocabulary, sorted(set(splits[0][1]))
    elmo = open_elmo(settings.preset, everything, settings.cache)
    model = build(
        vocabulary, len(known[1]), elmo, settings.place, vectors, settings.l2, settings.layer
    )
    optimizer = keras.optimizers.Adam(settings.learning_rate, global_clipnorm=5.0)
    model.compile(optimizer, "sparse_categorical_crossentropy", jit_compile=JIT)
    shuffled = {"size": settings.batch_size, "seed": settings.seed, "rare": rare}
    on_train, _ = batches(known, *splits[0], elmo, **shuffled)
    on_dev, on_test = (batches(known, *split, elmo) for split in splits[1:])
    facts = train(model, on_train, lambda: accuracy(model, *on_dev), settings, measure="accuracy")
    report(settings, model, test=accuracy(model, *on_test), **facts)


if __name__ == "__main__":
    main()
