"""Alphabets: tokens to rows of ids, in NumPy.

There are two kinds of padding. The id ``pad`` fills the row of a token after its last character. A
padding token is a row of zeros.
"""

import abc
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from keras_elmo.utils.checks import invalid, is_whole, shorten

N_CHARACTERS = 262  # ids of ``ByteAlphabet``
_Encoded: TypeAlias = tuple[Sequence[bytes], np.ndarray, np.ndarray, np.ndarray | None]
# The first entries of the characters and of the words of a biLM, in this order.
SPECIAL_CHARACTERS = ("<bos>", "<eos>", "<bow>", "<eow>", "<pad>", "<oov>")
SPECIAL_WORDS = ("<bos>", "<eos>", "<oov>")


class Alphabet(abc.ABC):
    """Turn tokens into rows of ids, and provide the sizes that a biLM needs.

    A row contains the ids of one token: ``begin``, the ids of the characters, ``end``, ``pad``,
    ``pad``, ... If the biLM has word embeddings, the id of the word comes first.

    Args:
        max_characters: int. Character ids of a token, begin and end marker included.

    Attributes:
        begin, end: int. The character ids before and after the characters of every token.
        pad: int. The character id that fills a row after ``end``.
        longest: int. Largest number of characters of a token in a row; the rest is cut off.
        row_length: int. Ids in a row.
        boundary_tokens: tuple of bytes. The input tokens that become boundary tokens.
        boundary_ids: tuple of int. The character ids of the boundary tokens.
        n_characters: int. Number of different character ids, 0 included.
        n_words, word_dim: int. Words with an embedding, and its features; 0 without words.
        leading: int. Word ids in a row, before the character ids: 0 or 1.
        largest_id: int. The largest id in a row.
        code_points: ``CodePoints`` or None. The known characters and words. None for an alphabet
            of bytes, which knows every character.
    """

    begin: int
    end: int
    pad: int
    boundary_tokens: tuple[bytes, bytes]
    boundary_ids: tuple[int, int]
    n_characters: int
    n_words = 0
    word_dim = 0
    code_points: Any = None

    def __init__(self, max_characters: int) -> None:
        self.leading = 1 if self.n_words else 0
        self.row_length = max_characters + self.leading
        self.largest_id = max(self.n_characters - 1, self.n_words)
        self.longest = max_characters - 2

    @abc.abstractmethod
    def encode(self, tokens: Sequence[bytes]) -> _Encoded:
        """Return the arguments of ``join_rows`` after ``xp``, for UTF-8 tokens."""

    def rows(self, tokens: Sequence[bytes]) -> np.ndarray:
        """Return the rows of UTF-8 tokens: int32, shape ``(len(tokens), row_length)``.

        No id is 0.

        Examples:
            >>> ByteAlphabet(6).rows([b"to"])
            array([[259, 117, 112, 260, 261, 261]], dtype=int32)
        """
        tokens, *rest = self.encode(tokens)
        return self.join_rows(np, np.array(tokens, object), *rest)

    def join_rows(self, xp: Any, tokens: Any, ids: Any, lengths: Any, word_ids: Any) -> Any:
        """Return the rows of tokens: int32, shape ``(*tokens.shape, row_length)``.

        ``xp`` is NumPy, or TensorFlow for tensors. ``tokens`` are bytes, and ``ids`` the ids of
        their characters, shape ``(*tokens.shape, longest)``. ``lengths`` are the numbers of their
        characters; later ids are arbitrary. ``word_ids`` are None for an alphabet without words.
        """
        place = np.arange(self.row_length, dtype="int32") - self.leading
        ids = xp.pad(ids, [(0, 0)] * (len(ids.shape) - 1) + [(1 + self.leading, 1)])
        ids = xp.where(lengths[..., None] < place, self.pad, ids)
        ids = xp.where(lengths[..., None] + 1 == place, self.end, ids)
        ids = xp.where(place == 0, self.begin, ids)
        if self.leading:
            ids = xp.where(place < 0, word_ids[..., None], ids)
        # A user may write boundary tokens. ElmoLayer adds them to every sentence itself.
        for token, row in zip(self.boundary_tokens, self.boundary_rows(self.row_length)):
            ids = xp.where((tokens == token)[..., None], row, ids)
        return ids

    def boundary_rows(self, row_length: int) -> np.ndarray:
        """Return the rows of both boundary tokens: int32, shape ``(2, row_length)``.

        ``row_length`` is the width of the batch. It can be less than the alphabet's.
        """
        rows = np.full((2, row_length), self.pad, "int32")
        for row, boundary in zip(rows, self.boundary_ids):
            row[: self.leading] = boundary  # its word id equals its character id
            row[self.leading : self.leading + 3] = self.begin, boundary, self.end
        return rows

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of characters in each row, begin and end marker included."""
        return (rows[:, self.leading :] != self.pad).sum(axis=1)

    def id_ranges(self, ids: np.ndarray) -> list[tuple[str, np.ndarray, int]]:
        """Return for each kind of id in the rows: its name, the ids, the largest valid id."""
        most = self.n_characters - 1
        if not self.leading or not ids.ndim:
            return [("character ids", ids, most)]
        return [("word ids", ids[..., 0], self.n_words), ("character ids", ids[..., 1:], most)]


class ByteAlphabet(Alphabet):
    """The bytes of UTF-8, as bilm-tf numbers them.

    A byte has the id ``byte + 1``, from 1 to 256; a padding token is a row of 0. Ids 257 to 261
    are ``<S>``, ``</S>``, the begin marker, the end marker and ``pad``.
    """

    BOS, EOS, begin, end, pad = range(257, N_CHARACTERS)
    boundary_tokens = (b"<S>", b"</S>")
    boundary_ids = (BOS, EOS)
    n_characters = N_CHARACTERS

    def encode(self, tokens: Sequence[bytes]) -> _Encoded:
        longest = self.longest
        lengths = np.array([min(len(token), longest) for token in tokens], "int32")
        text = b"".join(token[:longest].ljust(longest, b"\0") for token in tokens)
        ids = np.frombuffer(text, "uint8").reshape(len(tokens), longest).astype("int32") + 1
        return tokens, ids, lengths, None


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodePoints:
    """The characters and words that a biLM of ELMoForManyLangs knows.

    Attributes:
        characters: tuple of str. ``SPECIAL_CHARACTERS``, then the known characters. The first
            has the id 1.
        words: tuple of str. ``SPECIAL_WORDS``, then the known words. Empty if the biLM reads
            characters only.
        word_dim: int. Features of a word embedding; 0 without words.

    Raises:
        ValueError: If an attribute is invalid.
    """

    characters: tuple[str, ...]
    words: tuple[str, ...] = ()
    word_dim: int = 0

    def __post_init__(self) -> None:
        for name, special in (("characters", SPECIAL_CHARACTERS), ("words", SPECIAL_WORDS)):
            tokens = tuple(getattr(self, name))
            has_special = tokens[: len(special)] == special or (not tokens and name == "words")
            are_text = all(isinstance(token, str) for token in tokens)
            if not has_special or not are_text or len(set(tokens)) < len(tokens):
                expected = f"CodePoints expects {name} to be different texts, the first {special}"
                raise invalid(expected, f"{name}={shorten(tokens)}")
            object.__setattr__(self, name, tokens)
        if not is_whole(self.word_dim) or bool(self.word_dim) != bool(self.words):
            raise invalid(
                "CodePoints expects word_dim to be a whole number, 1 or more with words and 0 "
                "without",
                f"word_dim={shorten(self.word_dim)}, {len(self.words)} words",
            )

    def __repr__(self) -> str:
        sizes = f"{len(self.characters)} characters, {len(self.words)} words"
        return f"CodePoints({sizes}, word_dim={self.word_dim})"

    @classmethod
    def from_options(cls, options: object) -> "CodePoints":
        """Read the value of ``code_points`` in an options file."""
        try:
            return cls(**options)  # type: ignore[arg-type]
        except TypeError as error:  # no dict, or with other names or kinds of values
            expected = "Expected 'code_points' in the options with characters, words and word_dim"
            raise invalid(expected, f"code_points={shorten(options)} ({error})") from None


class CodePointAlphabet(Alphabet):
    """The code points that a biLM of ELMoForManyLangs knows, and its words.

    A token is cut to ``max_characters - 2`` code points, before its word is looked up.
    ELMoForManyLangs swaps the begin and end marker in training, so this class swaps them too.
    """

    boundary_tokens = (b"<bos>", b"<eos>")
    BOS, EOS, end, begin, pad, OOV = range(1, len(SPECIAL_CHARACTERS) + 1)
    boundary_ids = (BOS, EOS)
    WORD_OOV = SPECIAL_WORDS.index("<oov>") + 1

    def __init__(self, code_points: CodePoints, max_characters: int) -> None:
        self.code_points = code_points
        self.n_characters = len(code_points.characters) + 1
        self.n_words = len(code_points.words)
        self.word_dim = code_points.word_dim
        super().__init__(max_characters)

    @functools.cached_property
    def word_table(self) -> dict[bytes, int]:
        """The id of every word in UTF-8."""
        words = (word.encode("utf-8", "surrogatepass") for word in self.code_points.words)
        return {word: i for i, word in enumerate(words, 1)}

    @functools.cached_property
    def character_table(self) -> np.ndarray:
        """The ids of all code points up to the last known one, then ``<oov>`` for all others."""
        known = [(ord(c), i) for i, c in enumerate(self.code_points.characters, 1) if len(c) == 1]
        table = np.full(max((code for code, _ in known), default=0) + 2, self.OOV, "int32")
        for code, i in known:
            table[code] = i
        return table

    def encode(self, tokens: Sequence[bytes]) -> _Encoded:
        texts = [token.decode("utf-8", "ignore")[: self.longest] for token in tokens]
        joined = "".join(text.ljust(self.longest, "\0") for text in texts).encode("utf-32-le")
        codes = np.frombuffer(joined, "<u4").reshape(len(texts), self.longest)
        ids = self.character_table[np.minimum(codes, len(self.character_table) - 1)]
        lengths = np.array([len(text) for text in texts], "int32")
        words = [text.encode() for text in texts]
        word_ids = [self.word_table.get(word, self.WORD_OOV) for word in words]
        return words, ids, lengths, np.array(word_ids, "int32")
