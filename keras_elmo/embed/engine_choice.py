"""Choose between Keras and ONNX Runtime by the CPU."""

import importlib.util
import pathlib
import sys
from typing import Any

from keras_elmo.config import BiLMConfig
from keras_elmo.embed.onnx_engine import PACKAGES
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.extras import import_keras, install_hint

# The dtypes of each engine.
DTYPES = {"keras": ("float32", "bfloat16"), "onnxruntime": ("float32", "int8")}

# Device files of the accelerators of the backends on Linux: NVIDIA, Jetson, AMD, WSL, TPU.
_DEVICES = ("nvidia*", "nvhost*", "kfd", "dxg", "accel*", "vfio/[0-9]*")


def keras_engine() -> Any:
    """Return the module ``keras_engine``, imported here because ONNX Runtime needs no Keras."""
    import_keras()
    import keras_elmo.embed.keras_engine as engine

    return engine


def check_engine(engine: str, dtype: str) -> None:
    """Check that an ``Embedder`` can have this engine with this dtype."""
    pairs = {**DTYPES, "auto": ("float32", "bfloat16", "int8")}
    if dtype not in pairs.get(engine, ()):
        choices = "; ".join(f"{name!r} with dtype {' or '.join(pairs[name])}" for name in pairs)
        expected = f"Embedder expects engine to be {choices}"
        raise invalid(expected, f"engine={engine!r}, dtype={dtype!r}")


def choose_engine(config: BiLMConfig, dtype: str = "float32") -> tuple[str, str]:
    """Return the engine that ``Embedder(engine="auto")`` uses, and the reason.

    In float32, ONNX Runtime is faster on all CPUs that were measured, with AVX2, AVX-512
    and AMX (``docs/guide/embed.md``).

    Args:
        config: BiLMConfig. Sizes of the biLM.
        dtype: str. The dtype of the ``Embedder``.

    Returns:
        ``"keras"`` or ``"onnxruntime"``, and a text.
    """
    if dtype != "float32":
        engine = "onnxruntime" if dtype in DTYPES["onnxruntime"] else "keras"
        return engine, f"the only engine that computes in {dtype}"
    if config.code_points is not None:
        return "keras", "the biLM reads code points"
    if missing := [name for name in PACKAGES if not importlib.util.find_spec(name)]:
        return "keras", f"{' and '.join(missing)} missing. {install_hint('onnx')}"
    if not _computes_on_cpu():
        return "keras", "its backend has an accelerator"
    return "onnxruntime", "faster on the CPUs that were measured"


def _computes_on_cpu() -> bool:
    """Return whether the backend of Keras has no accelerator; ask it only if there may be one."""
    devices = pathlib.Path("/dev")
    if sys.platform == "linux" and not any(any(devices.glob(name)) for name in _DEVICES):
        return True
    return keras_engine().computes_on_cpu()
