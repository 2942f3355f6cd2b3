"""Words of coreference.py, questions.py and bert_layers.py: tokens, their ids and vectors."""

import collections
import re

import numpy as np
from keras import layers

import keras_elmo

PADDING, UNKNOWN = 0, 1  # word ids; the ids of the vocabulary start at 2


def tokens_and_spans(text):
    """Return the tokens of a text, and the start and end of each in characters."""
    tokens = keras_elmo.WordTokenizer("penn")(text)  # the tokenizer of the biLM's training text
    spans, end = [], 0
    for token in tokens:
        # The tokenizer writes all quotes as " and '.
        pattern = re.escape(token).replace("'", "['’‘`]")
        pattern = "\"|''|``|`+|[“”]" if token == '"' else pattern
        found = re.compile(rf"\s*({pattern})").match(text, end)
        if found is None:
            raise ValueError(
                f"Expected the token {token!r} in the text. Received: {text[end:60]!r}"
            )
        spans.append(found.span(1))
        end = found.end()
    return tokens, spans


def read_vectors(path, words):
    """Return the vectors of words, or of their lower-case forms, from a word2vec text file."""
    wanted, found = {form for word in words for form in (word, word.lower())}, {}
    with open(path, encoding="utf-8") as file:
        dimension = file.readline().split()[-1]
        if not dimension.isdecimal():
            raise ValueError(
                "Expected a first line with the numbers of words and dimensions, as in word2vec "
                f"text files. Received: path={str(path)!r}"
            )
        for line in file:
            word, *numbers = line.rstrip().rsplit(" ", int(dimension))
            if word in wanted:
                found[word] = np.array(numbers, "float32")
    return {w: found.get(w, found.get(w.lower())) for w in words if {w, w.lower()} & found.keys()}


def word_embedding(vectors, training, others, dimension=100):
    """Return the ids of words, and their embedding: frozen vectors, or trained from random.

    Words that occur once in training, and have no vector, share the id of unknown words.
    """
    seen = collections.Counter(token for text in training for token in text)
    known = [word for word in sorted(seen) if seen[word] > 1]
    found = {}
    if vectors:
        known = sorted({token for text in [*training, *others] for token in text})
        found = read_vectors(vectors, known)
        known = list(found)
        dimension = len(found[known[0]])
    vocabulary = {word: n for n, word in enumerate(known, start=UNKNOWN + 1)}
    embedding = layers.Embedding(UNKNOWN + 1 + len(known), dimension, trainable=not vectors)
    embedding.build((None, None))
    if vectors:
        table = np.stack([found[word] for word in known])
        embedding.set_weights([np.concatenate([np.zeros((2, dimension)), table])])
    return vocabulary, embedding


def word_ids(vocabulary, texts):
    """Return the ids of the words of each text."""
    return [np.array([vocabulary.get(token, UNKNOWN) for token in text]) for text in texts]
