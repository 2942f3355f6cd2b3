"""Choose between Keras and ONNX Runtime by the CPU."""

import keras

from keras_elmo.config import BiLMConfig
from keras_elmo.embed.onnx_engine import missing_packages
from keras_elmo.utils.extras import install_hint

# The dtypes of each engine.
DTYPES = {"keras": ("float32", "bfloat16"), "onnxruntime": ("float32", "int8")}
ALL_DTYPES = tuple(dict.fromkeys(dtype for dtypes in DTYPES.values() for dtype in dtypes))


def check_engine(engine: str, dtype: str) -> None:
    """Check that an ``Embedder`` can have this engine with this dtype."""
    if engine not in (*DTYPES, "auto"):
        raise ValueError(
            f"Embedder expects engine to be one of {(*DTYPES, 'auto')}. Received: engine={engine!r}"
        )
    if dtype not in (dtypes := DTYPES.get(engine, ALL_DTYPES)):
        raise ValueError(
            f"Embedder expects dtype to be one of {dtypes} for engine={engine!r}. "
            f"Received: dtype={dtype!r}"
        )


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
    able = [engine for engine, dtypes in DTYPES.items() if dtype in dtypes]
    if len(able) == 1:
        return able[0], f"the only engine that computes in {dtype}"
    if config.code_points is not None:
        return "keras", "the biLM reads code points"
    if missing := missing_packages():
        return "keras", f"{' and '.join(missing)} missing. {install_hint('onnx')}"
    if not _computes_on_cpu():
        return "keras", f"{keras.backend.backend()} has an accelerator"
    return "onnxruntime", "faster on the CPUs that were measured"


def _computes_on_cpu() -> bool:
    if keras.backend.backend() == "torch":
        import torch

        return not (torch.cuda.is_available() or torch.backends.mps.is_available())
    return all(device.startswith("cpu") for device in keras.distribution.list_devices())
