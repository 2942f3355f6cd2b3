"""Choose between Keras and ONNX Runtime by the CPU."""

import importlib.util

import keras

from keras_elmo.config import BiLMConfig
from keras_elmo.utils.cpu import cpu_flags


def choose_engine(config: BiLMConfig, dtype: str = "float32") -> tuple[str, str]:
    """Return the engine that ``Embedder(engine="auto")`` uses, and the reason.

    The choice for float32 was measured (``docs/engines.md``). ONNX Runtime is faster on CPUs
    without AVX-512 and on CPUs with AMX; Keras is faster on other CPUs with AVX-512.

    Args:
        config: BiLMConfig. Sizes of the biLM.
        dtype: str. The dtype of the ``Embedder``.

    Returns:
        ``"keras"`` or ``"onnxruntime"``, and a text.
    """
    if dtype == "int8":
        return "onnxruntime", "only ONNX Runtime computes in int8"
    if dtype == "bfloat16":
        return "keras", "only Keras computes in bfloat16"
    if config.code_points is not None:
        return "keras", "the biLM reads code points"
    missing = [n for n in ("onnx", "onnxruntime") if not importlib.util.find_spec(n)]
    if missing:
        return "keras", f"{' and '.join(missing)} not installed (pip install 'keras-elmo[onnx]')"
    if not _computes_on_cpu():
        return "keras", f"{keras.backend.backend()} has an accelerator"
    flags = cpu_flags()
    if flags is None:
        return "keras", "this system does not list the instructions of the CPU"
    if "amx_bf16" in flags:
        return "onnxruntime", "faster on a CPU with AMX"
    if "avx512f" in flags:
        return "keras", "faster on a CPU with AVX-512 and without AMX"
    return "onnxruntime", "faster on a CPU without AVX-512"


def _computes_on_cpu() -> bool:
    if keras.backend.backend() == "torch":
        import torch

        return not (torch.cuda.is_available() or torch.backends.mps.is_available())
    return all(device.startswith("cpu") for device in keras.distribution.list_devices())
