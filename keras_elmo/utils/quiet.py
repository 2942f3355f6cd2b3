"""Import Keras without the log lines of TensorFlow."""

import contextlib
import importlib
import os
import pathlib
import sys
from collections.abc import Iterator

from keras_elmo.utils.extras import install_hint

_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def is_command() -> bool:
    """Return whether this process is the command ``keras-elmo``."""
    return pathlib.Path((sys.argv or [""])[0]).stem == "keras-elmo"


def import_keras() -> None:
    """Import Keras and its backend.

    What TensorFlow prints meanwhile is hidden, unless the user has set ``TF_CPP_MIN_LOG_LEVEL``.

    Raises:
        ImportError: If the package of the backend is missing.
    """
    is_quiet = _LOG_LEVEL not in os.environ and "keras" not in sys.modules
    if is_quiet and is_command():
        os.environ[_LOG_LEVEL] = "3"
    try:
        with _hidden_stderr() if is_quiet and sys.stderr else contextlib.nullcontext():
            importlib.import_module("keras")
    except ModuleNotFoundError as error:
        backend = (error.name or "").partition(".")[0]
        if backend not in ("tensorflow", "jax", "torch"):
            raise
        hint = install_hint(backend)
        raise ImportError(
            f"Keras needs its backend. Received: no module {backend}. {hint}, or set "
            "KERAS_BACKEND to a backend that is installed"
        ) from None


@contextlib.contextmanager
def _hidden_stderr() -> Iterator[None]:
    """Redirect the file of stderr, because TensorFlow does not print through Python."""
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)
