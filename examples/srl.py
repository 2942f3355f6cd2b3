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
(V). It counts a continuation such as C-A1 as a role; CoNLL-2005 counts it as a part of A1. Runs on
every Keras backend.
"""

import pathlib

import keras
import ner
from cached_layers import elmo_input, open_elmo, representations_of
from conll import IOB2, read_columns, read_rows, tag_set
from keras import layers, ops
from keras.utils import pad_sequences
from parts import make_parser, report, train
from seqeval.metrics import f1_score
from word_vectors import PADDING, lower, read_words, word_embedding, word_ids

import keras_elmo


def read_frames(path):
    """Read a file; return its sentences as lists of (token, flag), and their tags in IOB2.

    There are many roles, so IOB2 saves a CRF three quarters of its time.
    """
    sentences, tags = read_columns(path, scheme=IOB2)
    flags = []
    for rows in read_rows(path):
        for number, row in rows:
            if len(row) < 3 or row[1] not in ("0", "1"):
                raise ValueError(
                    "Expected a token, then 1 (predicate) or 0, then a role. "
                    f"Received: line {number} of {path}: {' '.join(row)[:60]!r}"
                )
        flags.append([int(row[1]) for _, row in rows])
    return [list(zip(*pair)) for pair in zip(sentences, flags)], tags


def make_inputs(known, frames, elmo=None, rare=(), random=None):
    """Return word ids, predicate flags, and what ELMo reads."""
    tokens = [[token for token, _ in frame] for frame in frames]
    flags = [[flag for _, flag in frame] for frame in frames]
    ids = word_ids(lower(tokens), known["words"], rare, random)
    more = [elmo_input(elmo, tokens)] if elmo else []
    return ids, pad_sequences(flags, padding="post"), *more


def build(known, elmo, units, depth, vectors=None, learning_rate=1e-3):
    """Return the model to train, and the tagger that shares its weights."""
    words, flags = (keras.Input((None,), dtype="int32") for _ in range(2))
    inputs = [words, flags]
    mask = ops.not_equal(words, PADDING)  # passed explicitly: Concatenate loses it
    embedded = word_embedding(known["words"], 100, vectors)(words)
    h = layers.Concatenate()([layers.Dropout(0.5)(embedded), layers.Embedding(2, 50)(flags)])
    if elmo:
        mix = keras_elmo.ScalarMix(dropout=0.5, l2=1e-3, name="at_input")
        h = layers.Concatenate()([h, mix(representations_of(elmo, inputs), mask=mask)])
    for _ in range(depth):
        birnn = layers.Bidirectional(layers.LSTM(units, return_sequences=True))
        h = layers.Dropout(0.3)(birnn(h, mask=mask))
    return ner.with_crf(inputs, h, len(known["tags"]), mask, learning_rate)


def score(tagger, known, some, tags):
    """Return the F1 of the roles of all predicates in batches, without the role V."""
    found = ner.tag(tagger, known, some)
    roles = [[["O" if tag[2:] == "V" else tag for tag in x] for x in y] for y in (tags, found)]
    return f1_score(*roles, zero_division=0)


def main(arguments=None):
    parser = make_parser(__doc__, epochs=50)
    for name in ("train", "dev", "test"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True, help="column file")
    parser.add_argument("--units", type=int, default=200, help="units of each LSTM")
    parser.add_argument("--depth", type=int, default=2, help="number of biLSTMs")
    settings = parser.parse_args(arguments)
    keras.utils.set_random_seed(settings.seed)

    splits = [read_frames(path) for path in (settings.train, settings.dev, settings.test)]
    texts = [[[token for token, _ in frame] for frame in frames] for frames, _ in splits]
    everything = [tokens for text in texts for tokens in text]
    words, rare, vectors = read_words(settings.vectors, lower(texts[0]), lower(everything))
    (frames, tags), (dev, dev_tags), (test, test_tags) = splits
    known = {"words": words, "tags": tag_set(tags, IOB2)}
    elmo = open_elmo(settings.preset, everything, settings.cache)
    sizes = settings.units, settings.depth
    model, tagger = build(known, elmo, *sizes, vectors, settings.learning_rate)
    given = {"inputs": make_inputs, "elmo": elmo}
    shuffled = {"size": settings.batch_size, "seed": settings.seed, "rare": rare}
    on_train = ner.batches(known, frames, tags, **given, **shuffled)
    on_dev, on_test = (ner.batches(known, split, **given) for split in (dev, test))
    facts = train(model, on_train, lambda: score(tagger, known, on_dev, dev_tags), settings)
    report(settings, model, test=score(tagger, known, on_test, test_tags), **facts)


if __name__ == "__main__":
    main()
