"""Words of coreference.py, questions.py and bert_layers.py: tokens, their ids and vectors."""

import collections
import re

import numpy as np
from word_vectors import FIRST_WORD, UNKNOWN, read_vectors, word_embedding

import keras_elmo
from keras_elmo.tokenizers.words import plain_quotes


def tokens_and_spans(text):
    """Return the tokens of a text, and the start and end of each in characters."""
    tokens = keras_elmo.WordTokenizer("penn")(text)  # the tokenizer of the biLM's training text
    plain = plain_quotes(text)  # as in the tokenizer; the positions are equal
    spans, end = [], 0
    for token in tokens:
        pattern = "\"|''|``|`+" if token == '"' else re.escape(token)
        found = re.compile(rf"\s*({pattern})").match(plain, end)
        if found is None:
            raise ValueError(
                f"Expected the token {token!r} in the text. Received: {text[end : end + 60]!r}"
            )
        spans.append(found.span(1))
        end = found.end()
    return tokens, spans


def words_and_embedding(file, training, others):
    """Return the ids of words, and their embedding: frozen vectors, or trained from random.

    With a file, the words are those with a vector. Without one, they are the words that occur
    more than once in training.
    """
    # Count each text once: several questions repeat their passage.
    seen = collections.Counter(token for text in {*map(tuple, training)} for token in text)
    words = [word for word in sorted(seen) if seen[word] > 1]
    vectors = {}
    if file:
        everything = {token for text in (*training, *others) for token in text}
        words = vectors = read_vectors(file, sorted(everything))
    vocabulary = {word: n for n, word in enumerate(words, start=FIRST_WORD)}
    return vocabulary, word_embedding(vocabulary, 100, vectors, trainable=not vectors)


def ids_of(vocabulary, texts):
    """Return the ids of the words of each text."""
    return [np.array([vocabulary.get(token, UNKNOWN) for token in text]) for text in texts]
