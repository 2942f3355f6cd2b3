"""What the converters of TensorFlow's graphs to ONNX and LiteRT cannot read."""

import sys

_EXPORTERS = ("keras.src.export.onnx", "keras.src.export.litert")


def is_for_a_converter() -> bool:
    """Tell whether TensorFlow traces a graph for ``model.export`` to ONNX or LiteRT.

    Keras tells nobody, so its modules are looked for among the callers.
    """
    import tensorflow as tf

    frame = None if tf.executing_eagerly() else sys._getframe()
    while frame:
        if frame.f_globals.get("__name__") in _EXPORTERS:
            return True
        frame = frame.f_back
    return False
