"""What a biLM reads for a token: rows of character ids, of bytes or of code points."""

import functools

import numpy as np

from keras_elmo.config import (
    N_CHARACTERS,
    SPECIAL_CHARACTERS,
    SPECIAL_WORDS,
    BiLMConfig,
    CodePoints,
)
from keras_elmo.tokenizers.byte_ids import (
    BEGIN_SENTENCE,
    BOUNDARY_TOKENS,
    END_SENTENCE,
    PAD,
    boundary_row,
    character_ids,
)


class ByteAlphabet:
    """The bytes of UTF-8, as bilm-tf has them.

    Args:
        max_characters: Ids of a token, both word markers included.

    Attributes:
        boundary_tokens: The tokens, in UTF-8, that stand for the boundaries of a sentence.
        leading: Columns of a row in front of the characters.
        row_length: Ids in a row.
        largest_id: Of all that can stand in a row.
    """

    boundary_tokens = tuple(BOUNDARY_TOKENS)
    leading = 0
    largest_id = N_CHARACTERS - 1

    def __init__(self, max_characters):
        self.row_length = max_characters

    def rows(self, tokens) -> np.ndarray:
        """Return the rows of tokens in UTF-8: int32, shape ``(len(tokens), row_length)``."""
        return character_ids(tokens, self.row_length)

    def lengths(self, rows) -> np.ndarray:
        """Return the characters of every row, markers included, padding left out."""
        return (rows != PAD + 1).sum(axis=1)

    def boundary_rows(self, row_length) -> list[np.ndarray]:
        """Return the rows of the two boundary tokens: int32, shape ``(row_length,)``."""
        return [boundary_row(marker, row_length) for marker in (BEGIN_SENTENCE, END_SENTENCE)]


class CodePointAlphabet:
    """The code points of Unicode that a biLM of ELMoForManyLangs knows, and words in front.

    A token is cut to ``max_characters - 2`` code points. Its row is the id of the word, if the
    biLM knows words; then ``<eow>``, its characters, ``<bow>``, ``<pad>``, ... (the two markers
    are the wrong way round in training, so they are here). Ids start at 1; 0 is padding.

    Args:
        code_points: The ``CodePoints``.
        max_characters: Ids of the characters of a token, both word markers included.

    Attributes:
        boundary_tokens: As of ``ByteAlphabet``, and so are ``leading`` and ``row_length``.
    """

    boundary_tokens = tuple(token.encode() for token in SPECIAL_WORDS[:2])
    BOS, EOS, BOW, EOW, PAD, OOV = range(1, len(SPECIAL_CHARACTERS) + 1)
    WORD_OOV = SPECIAL_WORDS.index("<oov>") + 1

    def __init__(self, code_points: CodePoints, max_characters):
        self.code_points = code_points
        self.leading = 1 if code_points.words else 0
        self.row_length = max_characters + self.leading
        self.largest_id = max(len(code_points.characters), len(code_points.words))
        self.room = max_characters - 2

    @functools.cached_property
    def word_ids(self) -> dict:
        """The id of every word."""
        return {word: i for i, word in enumerate(self.code_points.words, 1)}

    @functools.cached_property
    def character_table(self) -> np.ndarray:
        """The id of every code point up to the last that is known, and one unknown more."""
        known = [(ord(c), i) for i, c in enumerate(self.code_points.characters, 1) if len(c) == 1]
        table = np.full(max((code for code, _ in known), default=0) + 2, self.OOV, "int32")
        for code, i in known:
            table[code] = i
        return table

    def rows(self, tokens) -> np.ndarray:
        """Return the rows of tokens in UTF-8: int32, shape ``(len(tokens), row_length)``."""
        texts = [token.decode("utf-8", "ignore")[: self.room] for token in tokens]
        lengths = np.array([len(text) for text in texts], "int32")
        joined = "".join(text.ljust(self.room, "\0") for text in texts).encode("utf-32-le")
        codes = np.frombuffer(joined, "<u4").reshape(len(texts), self.room)
        codes = np.minimum(codes, len(self.character_table) - 1)
        ids = np.full((len(texts), self.row_length), self.PAD, "int32")
        characters = ids[:, self.leading :]
        characters[:, 0] = self.EOW
        inside = np.arange(self.room) < lengths[:, None]
        np.copyto(characters[:, 1:-1], self.character_table[codes], where=inside)
        characters[np.arange(len(texts)), lengths + 1] = self.BOW
        if self.leading:
            ids[:, 0] = [self.word_ids.get(text, self.WORD_OOV) for text in texts]
        boundaries = self.boundary_rows(self.row_length)
        for row, text in enumerate(texts):
            if text in SPECIAL_WORDS[:2]:
                ids[row] = boundaries[SPECIAL_WORDS.index(text)]
        return ids

    def lengths(self, rows) -> np.ndarray:
        """Return the characters of every row, markers included, padding left out."""
        return (rows[:, self.leading :] != self.PAD).sum(axis=1)

    def boundary_rows(self, row_length) -> list[np.ndarray]:
        """Return the rows of the two boundary tokens: int32, shape ``(row_length,)``."""
        rows = []
        for marker in (self.BOS, self.EOS):
            row = np.full(row_length, self.PAD, "int32")
            row[: self.leading] = marker  # the words have them in the same order
            row[self.leading : self.leading + 3] = self.EOW, marker, self.BOW
            rows.append(row)
        return rows


@functools.lru_cache(maxsize=16)
def alphabet_of(config: BiLMConfig) -> ByteAlphabet | CodePointAlphabet:
    """Return the alphabet that a biLM reads.

    Example:

    >>> alphabet_of(BiLMConfig()).rows([b"to"])[0, :6]
    array([259, 117, 112, 260, 261, 261], dtype=int32)
    """
    if config.code_points is None:
        return ByteAlphabet(config.max_characters_per_token)
    return CodePointAlphabet(config.code_points, config.max_characters_per_token)


def check_ids(ids, config: BiLMConfig) -> np.ndarray:
    """Return an array or nested lists as an array.

    Raises:
        ValueError: If they are not character ids of the biLM.
    """
    try:
        ids = np.asarray(ids)
    except ValueError as error:
        raise ValueError(
            "ElmoLayer expects character ids in an array. Received: lists of unequal lengths. "
            "CharacterTokenizer makes ids from tokens"
        ) from error
    if ids.dtype.kind not in "iuf":
        raise ValueError(
            "ElmoLayer expects character ids. Received: an array of "
            f"dtype={ids.dtype}. CharacterTokenizer makes them from tokens"
        )
    words = config.code_points.words if config.code_points else ()
    if ids.ndim and words:
        _check_range("word ids", ids[..., 0], len(words))
        _check_range("character ids", ids[..., 1:], config.n_characters - 1)
    else:
        _check_range("character ids", ids, config.n_characters - 1)
    if ids.dtype.kind == "f" and (ids != np.floor(ids)).any():
        raise ValueError(
            f"ElmoLayer expects whole character ids. Received: fractions in dtype={ids.dtype}"
        )
    return ids


def _check_range(what, ids, most):
    if ids.size and not (ids.min() >= 0 and ids.max() <= most):
        raise ValueError(
            f"ElmoLayer expects {what} from 0 to {most}. "
            f"Received: ids from {ids.min()} to {ids.max()}. CharacterTokenizer makes them"
        )
