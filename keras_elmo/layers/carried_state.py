"""The LSTM states that a stateful biLM carries from batch to batch."""

import numpy as np
from keras import ops


class CarriedState:
    """Keep the state of every row of a batch for the same row of the next batch.

    Rows beyond a smaller batch keep theirs; new rows start at zero. The values are
    NumPy, ``{name of the LSTM: [h, c]}``, or None before the first batch.
    """

    def __init__(self):
        self.values = None

    def of_rows(self, n):
        """Return the state of the first ``n`` rows, or None if all start at zero."""
        if self.values is None:
            return None
        return {
            name: [ops.convert_to_tensor(_resized(x, max(n, len(x)))[:n]) for x in state]
            for name, state in self.values.items()
        }

    def update(self, state):
        """Store the final state of a batch, ``{name: [h, c]}`` tensors."""
        new = {name: [ops.convert_to_numpy(x) for x in s] for name, s in state.items()}
        if self.values is not None:
            for name, arrays in new.items():
                old = self.values[name]
                new[name] = [np.concatenate([x, y[len(x) :]]) for x, y in zip(arrays, old)]
        self.values = new

    def as_numpy(self):
        """Return ``h`` and ``c`` of all layers, or None before the first batch.

        Shapes ``(L, rows, 2 * projection_dim)`` and ``(L, rows, 2 * lstm_dim)``, forward
        before backward.
        """
        if self.values is None:
            return None
        directions = [
            [self.values[f"{direction}_{layer + 1}"] for layer in range(len(self.values) // 2)]
            for direction in ("forward", "backward")
        ]
        return tuple(
            np.concatenate([np.stack([state[part] for state in d]) for d in directions], axis=-1)
            for part in (0, 1)
        )

    def reset(self):
        """Let all rows start at zero again."""
        self.values = None


def _resized(x, rows):
    return np.concatenate([x, np.zeros((rows - len(x), *x.shape[1:]), x.dtype)])
