"""The LSTM states that a stateful biLM carries from batch to batch."""

from typing import Any

import numpy as np
from keras import ops


class CarriedState:
    """Keep the final state of every row of a batch, for the same row of the next batch.

    If the next batch has fewer rows, the other rows keep their state. If it has more rows, the
    new rows start at zero.

    Attributes:
        values: dict. ``(h, c)`` of every LSTM by its name, NumPy; empty before the first batch.
    """

    def __init__(self) -> None:
        self.values: dict[str, tuple[np.ndarray, ...]] = {}

    def for_batch(self, n: int) -> dict[str, tuple]:
        """Return the state of the first ``n`` rows; an empty dict if all rows start at zero."""

        def first_rows(x: np.ndarray) -> Any:
            return ops.convert_to_tensor(np.pad(x[:n], [(0, max(0, n - len(x))), (0, 0)]))

        return {name: tuple(map(first_rows, state)) for name, state in self.values.items()}

    def update(self, state: dict[str, Any]) -> None:
        """Store the final state of a batch: ``(h, c)`` of every LSTM by its name, tensors."""
        new = {name: tuple(map(ops.convert_to_numpy, s)) for name, s in state.items()}
        for name, old in self.values.items():
            new[name] = tuple(np.concatenate([x, y[len(x) :]]) for x, y in zip(new[name], old))
        self.values = new
