"""Token representations by token: computed once, kept in bounded memory, or read from a file."""

import dataclasses
import hashlib
import threading

import numpy as np

from keras_elmo.formats.hdf5 import read_arrays, write_arrays
from keras_elmo.utils.files import atomic_write, read_vocabulary_lines


@dataclasses.dataclass(frozen=True)
class FixedWords:
    """The token representations of a fixed vocabulary.

    Attributes:
        places: The row of every token, tokens being UTF-8 bytes.
        rows: float32, shape ``(len(places), projection_dim)``.
    """

    places: dict
    rows: np.ndarray

    def digest(self) -> str:
        """Return the SHA-256 of tokens and rows, in hexadecimal."""
        digest = hashlib.sha256(np.ascontiguousarray(self.rows).data)
        digest.update(b"\n".join(self.places))
        return digest.hexdigest()


class WordTable:
    """Remember the token representation of every token, up to a limit.

    Tokens of a fixed vocabulary are always there. When the others exceed the limit they
    are all forgotten: the next calls bring the frequent ones back. Any number of threads
    may look up tokens at once; they wait for each other only while rows are copied, not
    while they are computed.

    Args:
        compute: Function from a list of distinct tokens, UTF-8 bytes, to their
            representations, float32, shape ``(len(tokens), projection_dim)``.
        width: Features of a token representation.
        limit: Tokens to remember beyond the fixed vocabulary.
        fixed: ``FixedWords``, or None.
    """

    def __init__(self, compute, width, limit, fixed=None):
        self._compute = compute
        self._limit = limit
        self._fixed = fixed or FixedWords({}, np.zeros((0, width), "float32"))
        self._places = {}
        self._rows = np.zeros((0, width), "float32")
        self._lock = threading.Lock()

    def __len__(self):
        return len(self._fixed.places) + len(self._places)

    def look_up(self, tokens) -> np.ndarray:
        """Return the representations of distinct tokens, UTF-8 bytes, one row each.

        The array is float32, shape ``(len(tokens), projection_dim)``, and the caller's own.
        """
        rows = np.empty((len(tokens), self._rows.shape[1]), "float32")
        known = _copy_known(tokens, self._fixed.places, self._fixed.rows, rows)
        with self._lock:
            known |= _copy_known(tokens, self._places, self._rows, rows)
        new = np.flatnonzero(~known)
        if new.size:
            new_tokens = [tokens[i] for i in new]
            rows[new] = self._compute(new_tokens)
            self._remember(new_tokens, rows[new])
        return rows

    def _remember(self, tokens, rows):
        with self._lock:
            # Another thread may have been quicker with some of them.
            new = [i for i, token in enumerate(tokens) if token not in self._places]
            new = new[: self._limit]
            if len(self._places) + len(new) > self._limit:
                self._places = {}
            start = len(self._places)
            if start + len(new) > len(self._rows):
                size = min(2 * start + len(new), self._limit)
                self._rows = np.concatenate(
                    [self._rows[:start], np.empty((size - start, rows.shape[1]), "float32")]
                )
            self._rows[start : start + len(new)] = rows[new]
            self._places.update((tokens[i], start + k) for k, i in enumerate(new))


def _copy_known(tokens, places, source, rows):
    """Copy the rows of the tokens that have a place in the source; return which they are."""
    found = np.array([places.get(token, -1) for token in tokens], "int64")
    known = found >= 0
    rows[known] = source[found[known]]
    return known


def read_token_cache(vocabulary_file, embedding_file, width) -> FixedWords:
    """Read the token cache of a vocabulary, bilm-tf's layout; see ``write_token_cache``.

    Args:
        vocabulary_file: Path of a UTF-8 text, a token a line.
        embedding_file: Path of an hdf5 file with the one dataset ``embedding``.
        width: Features of a token representation.

    Returns:
        ``FixedWords``.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If the files do not fit each other or the width, if a token stands
            there twice, or if the vocabulary is not UTF-8 or a row not finite.
    """
    tokens = [token.encode() for token in read_vocabulary_lines(vocabulary_file)]
    arrays = read_arrays(
        embedding_file,
        expected={"embedding": (len(tokens), width)},
        kind="Token cache",
        fits=f"its vocabulary {vocabulary_file} and the biLM",
        remedy="Write it again with Embedder.write_token_cache",
    )
    rows = arrays["embedding"].astype("float32")
    return FixedWords(_numbered(tokens, f"Vocabulary {vocabulary_file}"), rows)


def write_token_cache(table, tokens, vocabulary_file, embedding_file) -> None:
    """Write the token cache of a vocabulary: a token a line, and ``embedding`` in hdf5.

    Args:
        table: The ``WordTable`` to take the rows from.
        tokens: List of distinct tokens, UTF-8 bytes.
        vocabulary_file: Path for the tokens.
        embedding_file: Path for the rows.
    """
    for token in _numbered(tokens, "Vocabulary"):
        if not token or b"\n" in token:
            raise ValueError(f"A vocabulary holds one token a line. Received: {_shown(token)}")
        _check_utf8(token, "A vocabulary holds UTF-8 text")
    rows = table.look_up(tokens)
    with atomic_write(vocabulary_file, embedding_file) as (vocabulary, embedding):
        vocabulary.write_bytes(b"".join(token + b"\n" for token in tokens))
        write_arrays(embedding, {"embedding": rows})


def _numbered(tokens, name):
    """Return the place of every token, all distinct."""
    places = {token: place for place, token in enumerate(tokens)}
    if len(places) < len(tokens):
        twice = next(token for place, token in enumerate(tokens) if places[token] != place)
        raise ValueError(f"{name} must hold every token once. Received: {_shown(twice)} twice")
    return places


def _check_utf8(text, expected):
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        place = text[max(0, error.start - 10) : error.end]
        raise ValueError(f"{expected}. Received: {place!r} ({error.reason})") from None


def _shown(token):
    return repr(token.decode("utf-8", "replace"))
