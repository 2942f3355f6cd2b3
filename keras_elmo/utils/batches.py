"""Plan batches: items of similar length together, and parts of bounded size."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TypeVar

import numpy as np

Item = TypeVar("Item", bound=Sized)

# For the character CNN.
_TOKENS_IN_A_BATCH = 256
_FEW_TOKENS = 32


def few_sizes(size: int, step: int) -> int:
    """Return the next power of two up to ``step``, or the next multiple of ``step``.

    JAX compiles anew for every shape, which takes seconds, so arrays are padded to a few sizes.
    """
    return 1 << (size - 1).bit_length() if size <= step else -(-size // step) * step


def padding_to_few_shapes(rows: int, tokens: int) -> tuple[int, int]:
    """Return how many rows and tokens to add to a batch on JAX."""
    return few_sizes(rows, 16) - rows, -tokens % 8 if tokens else 8


def group_by_length(
    lengths: np.ndarray, rows_for: Callable[[int], int], order: np.ndarray | None = None
) -> list[np.ndarray]:
    """Group sentences of similar length; return the indices of each batch, the longest first.

    ``rows_for`` maps the longest length of a batch to its number of rows. Sentences of equal length
    keep the given order.
    """
    order = np.arange(len(lengths)) if order is None else order
    order = order[np.argsort(-lengths[order], kind="stable")]
    batches = []
    while len(order):
        rows = rows_for(int(lengths[order[0]]))
        batches.append(order[:rows])
        order = order[rows:]
    return batches


def length_batches(lengths: Iterable[int], batch_tokens: int) -> list[np.ndarray]:
    """Group sentences of similar length; return the indices of each batch, the longest first.

    ``batch_tokens`` bounds the rows times the longest sentence, boundary tokens and padding
    included. A longer sentence gets a batch for itself.
    """
    return group_by_length(
        np.array([*lengths], "int64"), lambda longest: max(1, batch_tokens // (longest + 2))
    )


def token_batches(
    lengths: np.ndarray, widest_filter: int, max_characters: int
) -> Iterator[tuple[np.ndarray, int]]:
    """Group tokens of similar length into batches for the character CNN.

    ``lengths`` are the characters of each token with both markers. Yields the indices of
    some tokens, and the number of characters they need.
    """
    # The filters must see at least one window of padding, as they do in a full row.
    needed = np.minimum(-(-(lengths + widest_filter) // 8) * 8, max_characters)
    if len(needed) <= _FEW_TOKENS:  # Reading the weights again would cost more than padding.
        needed[:] = needed.max(initial=0)
    for width in np.unique(needed):
        group = np.flatnonzero(needed == width)
        for start in range(0, len(group), _TOKENS_IN_A_BATCH):
            yield group[start : start + _TOKENS_IN_A_BATCH], int(width)


def cut(
    items: Iterable[Item], most_items: int, most_size: int = sys.maxsize
) -> Iterator[list[Item]]:
    """Cut a stream of texts or lists into parts, bounded by their number and total length.

    An item longer than ``most_size`` gets a part for itself.

    Examples:
        >>> list(cut(["abc", "d", "e", "fghijklmn"], most_items=2, most_size=5))
        [['abc', 'd'], ['e'], ['fghijklmn']]
    """
    part: list[Item] = []
    total = 0
    for item in items:
        if part and (len(part) == most_items or total + len(item) > most_size):
            yield part
            part, total = [], 0
        part.append(item)
        total += len(item)
    if part:
        yield part
