"""Token representations by token: remembered in bounded memory, or read from a file."""

import dataclasses
import hashlib
import threading
from collections.abc import Callable, Sequence

import numpy as np

from keras_elmo.formats.hdf5 import read_arrays, write_arrays
from keras_elmo.utils.batches import cut
from keras_elmo.utils.files import (
    PathLike,
    atomic_write,
    read_vocabulary_lines,
    to_vocabulary_lines,
)


@dataclasses.dataclass(frozen=True)
class FixedTokens:
    """The token representations of a fixed vocabulary.

    Attributes:
        places: dict. The row of every token; tokens are UTF-8 bytes.
        rows: float32 array, shape ``(len(places), projection_dim)``.
    """

    places: dict[bytes, int]
    rows: np.ndarray

    def digest(self) -> str:
        """Return the SHA-256 of the tokens and their rows, in hexadecimal."""
        digest = hashlib.sha256(np.ascontiguousarray(self.rows).data)
        digest.update(b"\n".join(self.places))
        return digest.hexdigest()


class TokenTable:
    """Remember the token representation of every token, up to a limit.

    The table always contains the tokens of the fixed vocabulary. When the other tokens exceed
    the limit, it forgets all of them; later calls compute the frequent ones again. Any number
    of threads may look up tokens. They do not block each other while rows are computed.

    Args:
        compute: Callable. Maps a list of distinct tokens, UTF-8 bytes, to a float32 array of
            shape ``(len(tokens), projection_dim)``.
        width: int. Features of a token representation.
        limit: int. Number of tokens to remember, the fixed vocabulary not included.
        fixed: FixedTokens or None. The fixed vocabulary.
    """

    def __init__(
        self,
        compute: Callable[[list[bytes]], np.ndarray],
        width: int,
        limit: int,
        fixed: FixedTokens | None = None,
    ) -> None:
        self._compute = compute
        self._limit = limit
        self._fixed = fixed or FixedTokens({}, np.zeros((0, width), "float32"))
        self._remembered: dict[bytes, np.ndarray] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._fixed.places) + len(self._remembered)

    def look_up(self, tokens: Sequence[bytes]) -> np.ndarray:
        """Return the representations of distinct tokens, UTF-8 bytes, in a new array."""
        fixed = self._fixed
        rows = np.empty((len(tokens), fixed.rows.shape[1]), "float32")
        with self._lock:
            remembered = [self._remembered.get(token) for token in tokens]
        new = []
        for i, (token, row) in enumerate(zip(tokens, remembered, strict=True)):
            if token in fixed.places:
                rows[i] = fixed.rows[fixed.places[token]]
            elif row is not None:
                rows[i] = row
            else:
                new.append(i)
        if new:
            new_tokens = [tokens[i] for i in new]
            rows[new] = self._compute(new_tokens)
            self._remember(new_tokens, rows[new])
        return rows

    def _remember(self, tokens: list[bytes], rows: np.ndarray) -> None:
        with self._lock:
            # Another thread may have added some of these tokens meanwhile.
            new = [i for i, token in enumerate(tokens) if token not in self._remembered]
            new = new[: self._limit]
            if len(self._remembered) + len(new) > self._limit:
                self._remembered = {}
            # Copy: the view of a row keeps the whole array in memory.
            self._remembered.update((tokens[i], rows[i].copy()) for i in new)


def read_token_cache(
    vocabulary_file: PathLike, embedding_file: PathLike, width: int
) -> FixedTokens:
    """Read a token cache in bilm-tf's layout, for token representations of this width.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If the two files or the width do not match, if a token occurs twice, if the
            vocabulary is not UTF-8, or if a value is not finite.
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
    return FixedTokens(_places(tokens, f"Vocabulary {vocabulary_file}"), rows)


def write_token_cache(
    table: TokenTable,
    tokens: Sequence[bytes],
    vocabulary_file: PathLike,
    embedding_file: PathLike,
) -> None:
    """Write a token cache: a vocabulary, and an hdf5 file with the dataset ``embedding``.

    Raises:
        ValueError: If a token is empty, contains a line end, is not UTF-8 or occurs twice, or the
            tokens would not be read back; see ``to_vocabulary_lines``.
    """
    _check_vocabulary(tokens, b"\n")
    content = to_vocabulary_lines(token.decode() for token in tokens)
    rows = table.look_up(tokens)
    with atomic_write(vocabulary_file) as vocabulary, atomic_write(embedding_file) as embedding:
        vocabulary.write_bytes(content)
        write_arrays(embedding, {"embedding": rows})


def write_word_vectors(table: TokenTable, tokens: Sequence[bytes], file: PathLike) -> None:
    """Write the token representations of a vocabulary as word2vec text.

    Raises:
        ValueError: If a token is empty, contains white space, is not UTF-8 or occurs twice.
    """
    _check_vocabulary(tokens, b" \t\r\n")
    with atomic_write(file) as temporary, open(temporary, "wb") as text:
        text.write(b"%d %d\n" % (len(tokens), table.look_up([]).shape[1]))
        for part in cut(tokens, len, 1000, 1 << 20):
            for token, row in zip(part, table.look_up(part), strict=True):
                # Nine digits give the same float32 again.
                text.write(token + b" " + " ".join(f"{x:.9g}" for x in row).encode() + b"\n")


def _check_vocabulary(tokens: Sequence[bytes], separators: bytes) -> None:
    if not tokens:
        raise ValueError("Expected a vocabulary of a token or more. Received: no token")
    for token in _places(tokens, "Vocabulary"):
        if not token or any(byte in separators for byte in token):
            raise ValueError(
                f"A token of this vocabulary must not be empty or contain {separators.decode()!r}. "
                f"Received: {_shown(token)}"
            )
        try:
            token.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"A vocabulary must be UTF-8 text. Received: token {token!r} ({error.reason})"
            ) from None


def _places(tokens: Sequence[bytes], name: str) -> dict[bytes, int]:
    """Return the index of every token; raise if a token occurs twice."""
    places = {token: place for place, token in enumerate(tokens)}
    if len(places) < len(tokens):
        twice = next(token for place, token in enumerate(tokens) if places[token] != place)
        raise ValueError(f"{name} must contain every token once. Received: {_shown(twice)} twice")
    return places


def _shown(token: bytes) -> str:
    return repr(token.decode("utf-8", "replace"))
