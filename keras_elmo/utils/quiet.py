"""Import Keras and TensorFlow without the log lines of TensorFlow."""

import contextlib
import importlib
import os
import pathlib
import sys
from collections.abc import Iterator

from keras_elmo.utils.extras import install_hint

_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


def import_keras() -> None:
    """Import Keras and its backend; see ``hidden_log``.

    Raises:
        ImportError: If the package of the backend is missing.
    """
    if "keras" in sys.modules:
        return
    try:
        with hidden_log():
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
def hidden_log() -> Iterator[None]:
    """Hide what TensorFlow prints while it is imported, unless ``TF_CPP_MIN_LOG_LEVEL`` is set.

    The command ``keras-elmo`` also hides what TensorFlow prints later.
    """
    if _LOG_LEVEL in os.environ or not sys.stderr:
        yield
        return
    if pathlib.Path((sys.argv or [""])[0]).stem == "keras-elmo":
        os.environ[_LOG_LEVEL] = "3"
    # TensorFlow does not print through Python: redirect the file of stderr.
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)
