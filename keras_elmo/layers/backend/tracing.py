"""Find out for whom TensorFlow traces a graph."""

import sys

_EXPORTERS = ("keras.src.export.onnx", "keras.src.export.litert")


def is_exporting() -> bool:
    """Return whether TensorFlow traces a graph for ``model.export`` to ONNX or LiteRT.

    Keras has no flag for it, so this looks for its export modules among the callers.
    """
    import tensorflow as tf

    if tf.executing_eagerly():
        return False
    frame = sys._getframe().f_back
    while frame:
        if frame.f_globals.get("__name__") in _EXPORTERS:
            return True
        frame = frame.f_back
    return False
