"""Notice a process that was forked from one that had computed with Keras."""

import os
import sys

import keras

# The process that first computed. A forked process inherits this number.
_computing: int | None = None


def check_fork() -> None:
    """Check that Keras can compute in this process. Call it before each computation.

    The threads of the backends do not survive a fork, and computing waits for them forever.

    Raises:
        RuntimeError: If this process was forked from one that had called this function.
    """
    global _computing
    if _computing is None:
        _computing = os.getpid()
    elif _computing != os.getpid() and not _is_single_threaded():
        raise RuntimeError(
            "Expected a process that was not forked from one that had computed with Keras. "
            f"Received: process {os.getpid()}, forked from process {_computing}. Start it with "
            'multiprocessing.get_context("spawn"), or make the first Embedder or model after the '
            "fork"
        )


def _is_single_threaded() -> bool:
    """Return whether PyTorch computes without other threads, as in workers of its DataLoader."""
    is_torch = keras.backend.backend() == "torch"
    return is_torch and sys.modules["torch"].get_num_threads() == 1
