"""Hide the log lines of TensorFlow from users of the command ``keras-elmo``."""

import os
import pathlib
import sys


def import_keras_quietly() -> None:
    """Import Keras without the log lines of its backend, in the command ``keras-elmo`` only.

    Nothing is hidden if the user has set ``TF_CPP_MIN_LOG_LEVEL``. TensorFlow ignores that
    variable for two lines about CUDA, so stderr is closed during the import.
    """
    name = "TF_CPP_MIN_LOG_LEVEL"
    if pathlib.Path((sys.argv or [""])[0]).stem != "keras-elmo" or name in os.environ:
        return
    os.environ[name] = "3"
    try:
        stderr = os.dup(2)
    except OSError:  # the command was started without stderr
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        import keras  # noqa: F401
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)
