"""Token representations by token, remembered in bounded memory."""

import itertools
import threading
from collections.abc import Callable, Sequence

import numpy as np


class TokenTable:
    """Remember the token representation of every token, up to a limit.

    When the tokens exceed the limit, the table forgets all of them; later calls compute the
    frequent ones again. Any number of threads may look up tokens. They do not block each other
    while rows are computed.

    Args:
        width: int. Features of a token representation.
        limit: int. Number of tokens to remember.
    """

    def __init__(self, width: int, limit: int) -> None:
        self._width, self._limit = width, limit
        self._remembered: dict[bytes, np.ndarray] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._remembered)

    def look_up(
        self, tokens: Sequence[bytes], compute: Callable[[list[bytes]], np.ndarray]
    ) -> np.ndarray:
        """Return the representations of distinct tokens, UTF-8 bytes, in a new array.

        ``compute`` maps a list of distinct tokens to a float32 array, ``(len(tokens), width)``.
        """
        with self._lock:
            found = {x: self._remembered[x] for x in tokens if x in self._remembered}
        if new := [token for token in tokens if token not in found]:
            # Copies: the view of a row would keep the whole array in memory.
            computed = dict(zip(new, map(np.copy, compute(new)), strict=True))
            with self._lock:
                if len(self._remembered) + len(computed) > self._limit:
                    self._remembered = {}
                self._remembered.update(itertools.islice(computed.items(), self._limit))
            found |= computed
        return np.array([found[x] for x in tokens], "float32").reshape(-1, self._width)
