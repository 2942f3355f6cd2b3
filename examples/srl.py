"""Train a tagger of semantic roles, who did what to whom, with ELMo or without.

    python examples/srl.py --train train.conll --dev dev.conll --test test.conll
    python examples/srl.py --train train.conll --dev dev.conll --test test.conll --no-elmo

A file has a token a line: the token first, then 1 for the predicate whose roles are tagged and
0 for all other tokens, and last the role, such as B-A0, in IOB1, IOB2 or BIOES; an empty line
ends a sentence. A sentence with several predicates stands there once for each. The tagger is
that of He et al. (2017), simplified: word embeddings with an embedding of the predicate's flag
beside them, biLSTMs, and a CRF in place of their constraints; [x_k; ELMo_k] is at the input,
where the paper finds it best. The biLM is frozen and computed as it goes. F1 is that of whole
roles, the predicate's own (V) left out, as CoNLL-2005 counts. Runs on every Keras backend.
"""

import argparse
import pathlib

import keras
import ner
import numpy as np
from keras import layers, ops
from keras.utils import pad_sequences
from seqeval.metrics import f1_score

import keras_elmo


def read_frames(path):
    """Return the sentences of a file, as lists of (token, flag), and their tags in BIOES."""
    sentences, tags = ner.read_columns(path)
    flags = []
    for number, line in enumerate(path.read_text("utf-8-sig").split("\n"), start=1):
        fields = line.split("\t" if "\t" in line else None)
        if not line.strip() or line.startswith("-DOCSTART-"):
            continue
        if len(fields) < 3 or fields[1].strip() not in ("0", "1"):
            raise ValueError(
                "Expected a token, 1 or 0 for a predicate or none, and a role. "
                f"Received: line {number} of {path}: {line[:60]!r}"
            )
        flags.append(int(fields[1]))
    rest = iter(flags)
    return [list(zip(tokens, rest)) for tokens in sentences], tags


def make_inputs(known, frames):
    """Return the ids of words and of their characters, and the flags, padded."""
    tokens = [[token for token, _ in frame] for frame in frames]
    flags = [[flag for _, flag in frame] for frame in frames]
    return [*ner.make_inputs(known, tokens), pad_sequences(flags, padding="post")]


def build(known, elmo, units, depth):
    """Return the model to train, the tagger, which shares its weights, and the mix."""
    words = keras.Input((None,), dtype="int32")
    characters = keras.Input((None, ner.CHARACTERS), dtype="int32")
    flags = keras.Input((None,), dtype="int32")
    mask = ops.not_equal(words, ner.PADDING)  # handed on by hand: Concatenate would lose it
    embedded = layers.Embedding(2 + len(known["words"]), 100)(words)
    h = layers.Concatenate()([layers.Dropout(0.5)(embedded), layers.Embedding(2, 50)(flags)])
    mix = keras_elmo.ScalarMix(dropout=0.5, l2=1e-3)
    if elmo:
        h = layers.Concatenate()([h, mix(elmo(characters), mask=mask)])
    for _ in range(depth):
        birnn = layers.Bidirectional(layers.LSTM(units, return_sequences=True))
        h = layers.Dropout(0.3)(birnn(h, mask=mask))
    scores = layers.Dense(len(known["tags"]))(h)
    crf = keras_elmo.CRF()
    inputs = [words, characters, flags]
    model = keras.Model(inputs, crf(scores))
    model.compile(keras.optimizers.Adam(1e-3, global_clipnorm=5.0), crf.loss)
    return model, keras.Model(inputs, crf.decode(scores, mask)), mix


def score(tagger, known, frames, tags):
    """Return the F1 of the roles of all predicates, their own left out."""
    found = ner.tag(tagger, known, frames, make_inputs)
    roles = [[["O" if tag[2:] == "V" else tag for tag in x] for x in y] for y in (tags, found)]
    return f1_score(*roles, zero_division=0)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    for name in ("train", "dev", "test"):
        add(f"--{name}", type=pathlib.Path, required=True, help="column file")
    add("--elmo", action=argparse.BooleanOptionalAction, default=True, help="or without")
    add("--preset", default="elmo_small_en", help="of the biLM: a name, directory or .zip")
    add("--units", type=int, default=200, help="of each LSTM")
    add("--depth", type=int, default=2, help="biLSTMs")
    add("--epochs", type=int, default=50, help="at most")
    add("--patience", type=int, default=5, help="epochs to go on without a better F1 on dev")
    add("--seed", type=int, default=1)
    settings = parser.parse_args(arguments)
    keras.utils.set_random_seed(settings.seed)

    (frames, tags), dev, test = map(read_frames, (settings.train, settings.dev, settings.test))
    known, rare = ner.names_of([[token for token, _ in frame] for frame in frames], tags)
    elmo = keras_elmo.ElmoLayer.from_preset(settings.preset) if settings.elmo else None
    model, tagger, mix = build(known, elmo, settings.units, settings.depth)

    def batch_of(indices):
        some = ([x[i] for i in indices] for x in (frames, tags))
        return ner.make_batch(known, rare, *some, make_inputs)

    ner.fit(model, tagger, frames, batch_of, lambda: score(tagger, known, *dev), settings)
    if elmo:
        print(f"layer weights {np.round(mix.layer_weights, 3)}")
    print(f"test F1 {score(tagger, known, *test):.4f}")


if __name__ == "__main__":
    main()
