"""Words of the task models: their tokens, ids and embeddings, from random or given vectors.

The file has a word and its numbers on each line, with spaces between them, as GloVe's files do.
Files of word2vec and fastText begin with a line "count dimension".
"""

import collections
import itertools
import re

import numpy as np
from keras import layers

import keras_elmo

PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
# Quotes in a text, as patterns of a quote that WordTokenizer("penn") returns.
SINGLE, DOUBLE = "['`‘’‚‛]", "[\"“”„‟]|['`‘’‚‛]{1,2}|`+"


def read_vectors(path, words):
    """Return the vectors of some words from a text file.

    Args:
        path: path. File of word vectors.
        words: iterable of str. Words to look for. A word that is not in the file gets the
            vector of its lower-case form, if there is one. Other lines are skipped.

    Returns:
        Dict from word to float32 array, all of one shape.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If a line does not have a word and as many numbers as the first line, or if
            no word is found.
    """
    wanted = {form for word in words for form in (word, word.lower())}
    found = {}
    # Some released files contain words that are cut inside a character.
    with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
        first = file.readline()
        dimension, has_header = _dimension(path, first)
        lines = file if has_header else itertools.chain([first], file)
        for number, line in enumerate(lines, start=1 + has_header):
            # Split from the right, because GloVe 840B has words with spaces.
            word, *numbers = line.rstrip(" \r\n").rsplit(" ", dimension)
            if len(numbers) != dimension or _is_number(word.split(" ")[-1], within=word):
                raise _malformed(path, number, dimension, line)
            if word in wanted and word not in found:  # The first vector of a word counts.
                try:
                    found[word] = np.array(numbers, "float32")
                except ValueError:
                    raise _malformed(path, number, dimension, line) from None
    vectors = {word: found.get(word, found.get(word.lower())) for word in words}
    vectors = {word: vector for word, vector in vectors.items() if vector is not None}
    if not vectors:
        raise ValueError(
            f"read_vectors expects vectors for some of the {len(wanted)} words. "
            f"Received: path={str(path)!r}, without any of these words"
        )
    return vectors


def lower(sentences):
    """Return sentences in lower case."""
    return [[word.lower() for word in sentence] for sentence in sentences]


def read_words(file, training, everything):
    """Return the vocabulary and the rare words of a task, and the vectors of its words.

    Args:
        file: path or None. File of word vectors; None for no vectors.
        training: list of lists of str. Training sentences.
        everything: list of lists of str. All sentences that need vectors.
    """
    words = {word for sentence in everything for word in sentence}
    vectors = read_vectors(file, words) if file else {}
    return *make_vocabulary(training, vectors), vectors


def make_vocabulary(sentences, vectors):
    """Return the vocabulary, and the rare words that training replaces by unknown at times.

    Args:
        sentences: iterable of lists of str. Training sentences.
        vectors: dict. Its words join the vocabulary.

    Returns:
        Dict from word to id, and the set of words that occur once and have no vector.
    """
    seen = collections.Counter(word for sentence in sentences for word in sentence)
    known = sorted(seen.keys() | vectors.keys())
    rare = {word for word, times in seen.items() if times == 1} - vectors.keys()
    return {word: n for n, word in enumerate(known, start=FIRST_WORD)}, rare


def word_ids(sentences, vocabulary, rare=(), random=None):
    """Return the ids of words, int32 ``(sentences, tokens)``, padded.

    Args:
        sentences: list of lists of str. Words of each sentence.
        vocabulary: dict from str to int. Ids of the words; other words are unknown.
        rare: set of str. Words that become unknown half of the time, to train the vector of
            unknown words.
        random: NumPy generator. Draws the replacements; None keeps all words.
    """
    ids = np.full((len(sentences), max(map(len, sentences))), PADDING, "int32")
    for row, sentence in zip(ids, sentences):
        row[: len(sentence)] = [vocabulary.get(word, UNKNOWN) for word in sentence]
        if random:
            dropped = [word in rare and random.random() < 0.5 for word in sentence]
            row[: len(sentence)][dropped] = UNKNOWN
    return ids


def word_embedding(vocabulary, dimension, vectors=None, trainable=True):
    """Return an embedding of word ids; 0 is padding and 1 is unknown words.

    Args:
        vocabulary: dict from str to int. Ids of the words, from 2 on without a gap.
        dimension: int. Width of random vectors, if ``vectors`` is empty.
        vectors: dict from str to array. Words without a vector start random, with the standard
            deviation of the given vectors.
        trainable: bool. Whether training changes the vectors. If not, unknown words are zeros.
    """
    size = FIRST_WORD + len(vocabulary)
    if not vectors:
        return layers.Embedding(size, dimension, name="words_embedded")
    given = np.stack(list(vectors.values()))
    table = np.random.normal(0, given.std(), (size, given.shape[1])).astype("float32")
    for word, vector in vectors.items():
        if word in vocabulary:
            table[vocabulary[word]] = vector
    if not trainable:
        table[:FIRST_WORD] = 0
    embedding = layers.Embedding(size, given.shape[1], trainable=trainable, name="words_embedded")
    embedding.build((None, None))
    embedding.set_weights([table])
    return embedding


def tokens_and_spans(text):
    """Return the tokens of a text, and the start and end of each in characters."""
    tokens = keras_elmo.WordTokenizer("penn")(text)  # the tokenizer of the biLM's training text
    spans, end = [], 0
    for token in tokens:
        # The tokenizer makes quotes plain.
        pattern = DOUBLE if token == '"' else re.escape(token).replace("'", SINGLE)
        found = re.compile(rf"\s*({pattern})").match(text, end)
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


def _dimension(path, line):
    fields = line.rstrip(" \r\n").split(" ")
    if len(fields) == 2 and all(field.isdecimal() for field in fields):
        return int(fields[1]), True
    if len(fields) < 2 or not all(_is_number(field) for field in fields[1:]):
        raise ValueError(
            "read_vectors expects a text file, each line a word and its numbers. "
            f"Received: line 1 of {path}: {line[:60]!r}"
        )
    return len(fields) - 1, False


def _is_number(text, within=None):
    if text == within:  # The whole word is a number, and numbers may have vectors.
        return False
    try:
        float(text)
    except ValueError:
        return False
    return True


def _malformed(path, number, dimension, line):
    return ValueError(
        f"read_vectors expects a word and {dimension} numbers a line. "
        f"Received: line {number} of {path}: {line[:60]!r}"
    )
