"""Find the name that a pronoun means, on GAP, with or without ELMo.

    python examples/coreference.py --data FOLDER
    python examples/coreference.py --data FOLDER --no-elmo

FOLDER contains gap-development.tsv, gap-validation.tsv and gap-test.tsv (Webster et al., 2018). A
row has a passage, a pronoun, and two names, A and B. The script trains on gap-development.tsv, and
chooses the epoch on gap-validation.tsv. The model follows the span model of Lee et al. (2017): a
biLSTM reads [x_k; ELMo_k], attention over the tokens of a mention gives its vector, and each name
is scored in a pair with the pronoun. The answer "neither" has the score 0. The frozen biLM reads
each passage once. The script prints the measures of GAP's scorer: F1 for all pronouns, for
masculine and for feminine pronouns, and the bias, feminine F1 divided by masculine F1. Runs on
every Keras backend.
"""

import csv
import pathlib

import keras
import numpy as np
from cached_layers import open_elmo
from keras import layers, ops
from parts import JIT, TextLayers, layer_folder, make_parser, padded_batches, report, train
from word_vectors import PADDING, ids_of, tokens_and_spans, words_and_embedding

import keras_elmo

FEMININE = {"she", "her", "hers"}


def read_gap(path):
    """Read a file of GAP.

    Returns:
        List of dicts: ``tokens``; ``mentions``, a 0-1 array ``(tokens, 3)`` of the pronoun, A and
        B; ``label``, 1 for A, 2 for B, 0 for neither; ``feminine``.
    """
    rows = []
    with open(path, encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            if None in row.values() or "A-coref" not in row:
                raise ValueError(
                    "Expected the columns of GAP, separated by tabs. "
                    f"Received: row {len(rows) + 1} of {path}"
                )
            tokens, spans = tokens_and_spans(row["Text"])
            mentions = np.zeros((len(tokens), 3), "float32")
            for n, name in enumerate(("Pronoun", "A", "B")):
                start = int(row[f"{name}-offset"])
                end = start + len(row[name])
                mentions[:, n] = [first < end and last > start for first, last in spans]
            label = 1 if row["A-coref"] == "TRUE" else 2 if row["B-coref"] == "TRUE" else 0
            feminine = row["Pronoun"].lower() in FEMININE
            rows.append(
                {"tokens": tokens, "mentions": mentions, "label": label, "feminine": feminine}
            )
    if not rows:
        raise ValueError(f"Expected a row or more. Received: path={str(path)!r}")
    return rows


def measures(rows, found):
    """Return GAP's measures of the labels found: each row has two pairs, of which one may be true.

    Bias is the F1 for feminine pronouns divided by the F1 for masculine pronouns.
    """

    def f1(chosen):
        pairs = [(row["label"], label) for row, label in chosen]
        right = sum(gold == label != 0 for gold, label in pairs)
        return 2 * right / max(1, sum(bool(x) for pair in pairs for x in pair))

    pairs = list(zip(rows, found))
    parts = {
        "f1": f1(pairs),
        "masculine": f1([pair for pair in pairs if not pair[0]["feminine"]]),
        "feminine": f1([pair for pair in pairs if pair[0]["feminine"]]),
    }
    return {**parts, "bias": parts["feminine"] / max(parts["masculine"], 1e-9)}


def build(embedding, elmo_shape, units, dropout=0.4):
    """Return a model of word ids, mentions and layers; its output is [neither, A, B]."""
    words = keras.Input((None,), dtype="int32", name="words")
    mentions = keras.Input((None, 3), name="mentions")
    inputs = {"words": words, "mentions": mentions}
    mask = ops.not_equal(words, PADDING)  # passed explicitly: Concatenate loses it
    x = embedding(words)
    if elmo_shape:
        inputs["layers"] = keras.Input((None, *elmo_shape), name="layers")
        mix = keras_elmo.ScalarMix(l2=1e-3, name="at_input")
        x = layers.Concatenate()([x, mix(inputs["layers"], mask=mask)])
    x = layers.Dropout(dropout)(x)
    h = layers.Bidirectional(layers.LSTM(units, return_sequences=True))(x, mask=mask)
    h = layers.Concatenate()([layers.Dropout(dropout)(h), x])

    heads = layers.Dense(1)(h) - 1e4 * (1 - mentions)  # (batch, tokens, 3)
    spans = ops.einsum("btm,btw->bmw", ops.softmax(heads, axis=1), h)
    spans = layers.Dense(units, activation="relu")(spans)
    # The signed distance between the first tokens of the mentions, in steps of a logarithm.
    first = ops.cast(ops.argmax(mentions, axis=1), "float32")  # (batch, 3)
    distance = first[:, :1] - first[:, 1:]
    distance = ops.sign(distance) * ops.log(1 + ops.abs(distance))
    pronoun, names = spans[:, :1], spans[:, 1:]
    other = ops.flip(names, axis=1)  # the score of a name depends on its rival
    pairs = [ops.repeat(pronoun, 2, axis=1), names, pronoun * names, other]
    pairs = layers.Concatenate()(
        [*pairs, distance[..., None], ops.flip(distance, axis=1)[..., None]]
    )
    pairs = layers.Dropout(dropout)(layers.Dense(units, activation="relu")(pairs))
    scores = layers.Dense(1)(pairs)[..., 0]
    return keras.Model(inputs, {"label": ops.concatenate([0 * scores[:, :1], scores], axis=1)})


def main(arguments=None):
    parser = make_parser(__doc__, epochs=20)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder of GAP's files")
    parser.add_argument("--units", type=int, default=100, help="units of the biLSTM")
    settings = parser.parse_args(arguments)
    keras.utils.set_random_seed(settings.seed)

    names = {"train": "development", "dev": "validation", "test": "test"}
    parts = {part: read_gap(settings.data / f"gap-{name}.tsv") for part, name in names.items()}
    texts = {part: [row["tokens"] for row in rows] for part, rows in parts.items()}
    others = texts["dev"] + texts["test"]
    vocabulary, embedding = words_and_embedding(settings.vectors, texts["train"], others)
    with layer_folder(settings.cache) as folder:
        elmo = open_elmo(settings.preset)
        batches, shape = {}, None
        for part, rows in parts.items():
            inputs = {
                "words": ids_of(vocabulary, texts[part]),
                "mentions": [row["mentions"] for row in rows],
            }
            if elmo:
                inputs["layers"] = TextLayers(elmo, texts[part], folder)
                shape = inputs["layers"].shape
            targets = {"label": [row["label"] for row in rows]}
            lengths = list(map(len, texts[part]))
            seed = settings.seed if part == "train" else None
            batches[part] = padded_batches(inputs, targets, lengths, settings.batch_size, seed)

        model = build(embedding, shape, settings.units)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.Adam(settings.learning_rate, global_clipnorm=5.0)
        model.compile(optimizer, {"label": loss}, jit_compile=JIT)

        def score(part):
            found = [int(x["label"].argmax()) for x in batches[part].predict(model)]
            return measures(parts[part], found)

        facts = train(model, batches["train"], lambda: score("dev")["f1"], settings)
        test = score("test")
    for name, value in test.items():
        print(f"{name:10} {value:.4f}")
    report(settings, model, test=test["f1"], measures=test, **facts)


if __name__ == "__main__":
    main()
