"""Token representations by token, remembered in bounded memory."""

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
        rows = np.empty((len(tokens), self._width), "float32")
        with self._lock:
            remembered = [self._remembered.get(token) for token in tokens]
        for i, row in enumerate(remembered):
            if row is not None:
                rows[i] = row
        if new := [i for i, row in enumerate(remembered) if row is None]:
            new_tokens = [tokens[i] for i in new]
            rows[new] = compute(new_tokens)
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
