"""Token representations by token: computed once, kept in bounded memory, or read from a file."""

import hashlib
import itertools

import numpy as np

from keras_elmo.checkpoints.files import atomic_write, read_lines
from keras_elmo.checkpoints.hdf5 import read_arrays, write_arrays


class TokenTable:
    """Remember the token representation of every token, up to a limit.

    Tokens of a fixed vocabulary, read from a file, stay. When the others exceed the
    limit they are all forgotten: the next batches bring the frequent ones back.

    Args:
        compute: Function from a list of distinct tokens to their representations,
            float32, shape ``(len(tokens), projection_dim)``.
        width: Features of a token representation.
        limit: Tokens to remember beyond the fixed vocabulary.
    """

    def __init__(self, compute, width, limit):
        self._compute = compute
        self._limit = limit
        self._places = {}
        self._rows = np.zeros((0, width), "float32")
        self._fixed = 0

    def __len__(self):
        return len(self._places)

    def load(self, vocabulary_file, embedding_file) -> None:
        """Read the token cache of a fixed vocabulary, bilm-tf's layout; see ``write``."""
        tokens = read_lines(vocabulary_file)
        arrays = read_arrays(
            embedding_file,
            expected={"embedding": (len(tokens), self._rows.shape[1])},
            kind="Token cache",
            fits=f"its vocabulary {vocabulary_file} and the biLM",
            advice="Write it again with Embedder.write_token_cache",
        )
        self._rows = arrays["embedding"].astype("float32")
        self._places = _numbered(tokens, f"Vocabulary {vocabulary_file}")
        self._fixed = len(tokens)

    def write(self, tokens, vocabulary_file, embedding_file) -> None:
        """Write the token cache of a vocabulary: a token a line, and ``embedding`` in hdf5."""
        for token in _numbered(tokens, "Vocabulary"):
            if not token or "\n" in token:
                raise ValueError(f"A vocabulary holds one token a line. Received: {token!r}")
        places, rows = self.look_up(tokens)
        with atomic_write(vocabulary_file, embedding_file) as (vocabulary, embedding):
            vocabulary.write_bytes("".join(f"{t}\n" for t in tokens).encode("utf-8"))
            write_arrays(embedding, {"embedding": rows[places]})

    def fixed_digest(self):
        """Return a digest of the fixed vocabulary and its rows, None if there is none."""
        if not self._fixed:
            return None
        digest = hashlib.sha256(self._rows[: self._fixed].tobytes())
        digest.update("\n".join(itertools.islice(self._places, self._fixed)).encode())
        return digest.hexdigest()

    def forget(self) -> None:
        """Forget all but the fixed vocabulary."""
        self._places = dict(itertools.islice(self._places.items(), self._fixed))

    def look_up(self, tokens):
        """Return an int array of places, one a token, and the rows that they point into.

        The rows are float32, shape ``(any, projection_dim)``, and good until the next call.
        """
        new = [token for token in dict.fromkeys(tokens) if token not in self._places]
        if len(self._places) - self._fixed + len(new) > self._limit:
            self.forget()
            new = [token for token in dict.fromkeys(tokens) if token not in self._places]
        if new:
            start = len(self._places)
            if start + len(new) > len(self._rows):
                grown = np.empty((2 * start + len(new), self._rows.shape[1]), "float32")
                grown[:start] = self._rows[:start]
                self._rows = grown
            self._rows[start : start + len(new)] = self._compute(new)
            self._places.update((token, start + i) for i, token in enumerate(new))
        return np.array([self._places[token] for token in tokens], "int64"), self._rows


def _numbered(tokens, name):
    """Return the place of every token, all distinct."""
    places = {token: place for place, token in enumerate(tokens)}
    if len(places) < len(tokens):
        twice = next(token for place, token in enumerate(tokens) if places[token] != place)
        raise ValueError(f"{name} must hold every token once. Received: {twice!r} twice")
    return places
