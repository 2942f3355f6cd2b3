"""Train a tagger of semantic roles (who did what to whom), with or without ELMo.

    python examples/srl.py --train train.conll --dev dev.conll --test test.conll
    python examples/srl.py --train train.conll --dev dev.conll --test test.conll --no-elmo

A file has one token per line: first the token, then 1 for the predicate and 0 for all other
tokens, last the role in IOB1, IOB2 or BIOES, such as B-A0. An empty line ends a sentence. A
sentence with several predicates occurs once for each of them. The tagger is a simplified He et al.
(2017): embeddings of the word and of the predicate flag, biLSTMs, and a CRF in place of their
constraints. [x_k; ELMo_k] joins at the input, where the paper found it best. --vectors reads the
word embeddings from a word2vec text file, such as GloVe. The frozen biLM runs inside the model;
--cache computes its layers once instead. F1 counts whole roles and ignores the predicate itself
(V), as CoNLL-2005 does. Runs on every Keras backend.
"""

import argparse
import functools
import pathlib

import keras
import ner
import numpy as np
from experiments.cached_layers import open_elmo, representations_of, write_scores
from experiments.word_vectors import word_embedding
from keras import layers, ops
from keras.utils import pad_sequences
from seqeval.metrics import f1_score

import keras_elmo


def read_frames(path):
    """Read a file; return its sentences as lists of (token, flag), and their tags in BIOES."""
    sentences, tags = ner.read_columns(path)
    flags = []
    for number, line in enumerate(path.read_text("utf-8-sig").split("\n"), start=1):
        fields = line.split("\t" if "\t" in line else None)
        if not line.strip() or line.startswith("-DOCSTART-"):
            continue
        if len(fields) < 3 or fields[1].strip() not in ("0", "1"):
            raise ValueError(
                "Expected a token, then 1 (predicate) or 0, then a role. "
                f"Received: line {number} of {path}: {line[:60]!r}"
            )
        flags.append(int(fields[1]))
    rest = iter(flags)
    return [list(zip(tokens, rest)) for tokens in sentences], tags


def make_inputs(known, frames, elmo=None):
    """Return word ids, character ids, predicate flags, and the layers if ``elmo`` stores them."""
    tokens = [[token for token, _ in frame] for frame in frames]
    flags = [[flag for _, flag in frame] for frame in frames]
    words, characters, *stored = ner.make_inputs(known, tokens, elmo)
    return [words, characters, pad_sequences(flags, padding="post"), *stored]


def build(known, elmo, units, depth, vectors=None):
    """Return the model to train, the tagger that shares its weights, and the mix."""
    words = keras.Input((None,), dtype="int32")
    characters = keras.Input((None, ner.CHARACTERS), dtype="int32")
    flags = keras.Input((None,), dtype="int32")
    mask = ops.not_equal(words, ner.PADDING)  # passed explicitly: Concatenate loses it
    inputs = [words, characters, flags]
    embedded = word_embedding(known["words"], 100, vectors)(words)
    h = layers.Concatenate()([layers.Dropout(0.5)(embedded), layers.Embedding(2, 50)(flags)])
    mix = keras_elmo.ScalarMix(dropout=0.5, l2=1e-3, name="at_input")
    if elmo:
        representations = representations_of(elmo, characters, inputs)
        h = layers.Concatenate()([h, mix(representations, mask=mask)])
    for _ in range(depth):
        birnn = layers.Bidirectional(layers.LSTM(units, return_sequences=True))
        h = layers.Dropout(0.3)(birnn(h, mask=mask))
    scores = layers.Dense(len(known["tags"]))(h)
    crf = keras_elmo.CRF()
    model = keras.Model(inputs, crf(scores))
    model.compile(keras.optimizers.Adam(1e-3, global_clipnorm=5.0), crf.loss)
    return model, keras.Model(inputs, crf.decode(scores, mask)), mix


def score(tagger, known, frames, tags, make_inputs=make_inputs):
    """Return the F1 of the roles of all predicates, without the role V."""
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
    add("--elmo", action=argparse.BooleanOptionalAction, default=True, help="use ELMo or not")
    add("--preset", default="elmo_small_en", help="biLM: name, directory or .zip")
    add("--vectors", type=pathlib.Path, help="word2vec text file for the word embeddings")
    add("--cache", type=pathlib.Path, help="folder for the biLM's layers, computed once")
    add("--units", type=int, default=200, help="units of each LSTM")
    add("--depth", type=int, default=2, help="number of biLSTMs")
    add("--epochs", type=int, default=50, help="largest number of epochs")
    add(
        "--patience",
        type=int,
        default=5,
        help="stop after this many epochs without a better F1 on dev",
    )
    add("--seed", type=int, default=1)
    add("--scores", type=pathlib.Path, help="JSON file to write the F1 on test to")
    settings = parser.parse_args(arguments)
    keras.utils.set_random_seed(settings.seed)

    (frames, tags), dev, test = map(read_frames, (settings.train, settings.dev, settings.test))
    everything = [[token for token, _ in frame] for frame in (*frames, *dev[0], *test[0])]
    vectors = ner.vectors_of(settings.vectors, everything)
    known, rare = ner.names_of(everything[: len(frames)], tags, vectors)
    elmo = open_elmo(settings.preset, everything, settings.cache) if settings.elmo else None
    make = functools.partial(make_inputs, elmo=elmo)
    model, tagger, mix = build(known, elmo, settings.units, settings.depth, vectors)

    def batch_of(indices):
        some = ([x[i] for i in indices] for x in (frames, tags))
        return ner.make_batch(known, rare, *some, make)

    ner.fit(model, tagger, frames, batch_of, lambda: score(tagger, known, *dev, make), settings)
    if elmo:
        print(f"layer weights {np.round(mix.layer_weights, 3)}")
    f1 = score(tagger, known, *test, make)
    print(f"test F1 {f1:.4f}")
    if settings.scores:
        write_scores(settings.scores, f1, tagger)


if __name__ == "__main__":
    main()
