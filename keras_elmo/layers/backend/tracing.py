"""Find out who calls a layer: a user, a compiler, an export, or Keras for the shapes."""

import sys
import traceback

import keras

from keras_elmo.utils.typing import Tensor

_EXPORTERS = ("keras.src.export.onnx", "keras.src.export.litert")


def is_exporting() -> bool:
    """Return whether TensorFlow traces a graph for ``model.export`` to ONNX or LiteRT.

    Keras has no flag for it, so this looks for its export modules among the callers.
    """
    tf = sys.modules.get("tensorflow")  # other backends do not need it
    if tf is None or tf.executing_eagerly():
        return False
    callers = traceback.walk_stack(sys._getframe())
    return any(frame.f_globals.get("__name__") in _EXPORTERS for frame, _ in callers)


def computes_shapes_only() -> bool:
    """Return whether Keras runs a layer only to find the shapes of its outputs.

    Keras does this in a ``SymbolicScope``. A new scope records the scope around it.
    """
    scope = keras.SymbolicScope()
    with scope:
        return scope.original_scope is not None


def is_eager(tensor: Tensor) -> bool:
    """Return whether a tensor has values that can be read now."""
    if isinstance(tensor, keras.KerasTensor) or computes_shapes_only():
        return False
    backend = keras.backend.backend()
    if backend == "tensorflow":
        return hasattr(tensor, "numpy")
    if backend == "jax":
        import jax

        return not isinstance(tensor, jax.core.Tracer)
    import torch

    return not (torch.compiler.is_compiling() or torch.jit.is_tracing())
