"""Compute the two halves of a biLM with ONNX Runtime, from NumPy arrays to NumPy arrays."""

import importlib.util
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_elmo.formats.weight_mapping import variables_by_path
from keras_elmo.layers.bilm import DIRECTIONS, lstm_names
from keras_elmo.layers.elmo_layer import ElmoLayer
from keras_elmo.onnx.bilm_graph import check_alphabet
from keras_elmo.onnx.models import lstm_model, token_model
from keras_elmo.utils.cpu import cpu_flags, overflows_in_int8
from keras_elmo.utils.forks import check_fork


class OnnxEngine:
    """Compute what ``KerasEngine`` computes, with ONNX Runtime on the CPU.

    The first call takes seconds: ONNX Runtime arranges the weights for its matrix products.

    Args:
        elmo: ElmoLayer. A built layer; nobody else may change its weights.
        dtype: str. ``"float32"``, or ``"int8"`` for matrix products of eight bits.

    Raises:
        ImportError: If ONNX or ONNX Runtime is not installed.
        ValueError: If the biLM reads code points.
    """

    def __init__(self, elmo: ElmoLayer, dtype: str = "float32") -> None:
        if missing := missing_packages():
            raise ImportError(
                'Embedder(engine="onnxruntime") needs ONNX and ONNX Runtime. Received: no '
                f"module {missing[0]}. Install both: pip install 'keras-elmo[onnx]'"
            )
        check_alphabet(elmo.config)
        self._elmo = elmo
        self._dtype = dtype
        self._sessions: dict[Callable, Any] = {}
        self._lock = threading.Lock()

    def settings(self) -> dict[str, str]:
        """Return what the bits of a result depend on, for JSON."""
        return {
            "biLM": self._elmo.fingerprint(),
            "options": self._elmo.config.digest(),
            "dtype": self._dtype,
            "engine": "onnxruntime",
        }

    def represent(self, ids: np.ndarray) -> np.ndarray:
        """Compute what ``KerasEngine.represent`` computes."""
        return self._session(token_model).run(["token"], {"ids": ids})[0]

    def contextualize(self, tokens: np.ndarray, mask: np.ndarray, layers: str | int) -> np.ndarray:
        """Compute what ``KerasEngine.contextualize`` computes."""
        config = self._elmo.config
        top = config.n_layers
        wanted = range(top + 1) if layers in ("all", "average") else [top]
        if isinstance(layers, int):
            wanted = [layers]
        names = [name for name in lstm_names(config) if int(name.rpartition("_")[2]) in wanted]
        tokens = np.ascontiguousarray(np.moveaxis(tokens, 1, 0))
        outputs = {f"{direction}_0": tokens for direction in DIRECTIONS}
        if names:
            inputs = {"token": tokens, "mask": mask.T[..., None]}
            found = self._session(lstm_model).run(names, inputs, _run_options())
            outputs |= zip(names, found, strict=True)
        stacked = _stack(outputs, wanted)
        if layers == "all":
            return stacked
        return stacked.mean(axis=2) if layers == "average" else stacked[:, :, 0]

    def _session(self, make_model: Callable) -> Any:
        """Return the session of a model; make it at the first call."""
        with self._lock:
            if make_model not in self._sessions:
                check_fork()  # a session computes in a forked process, but Keras made the weights
                is_for_tokens = make_model is token_model
                weights = {
                    path: ops.convert_to_numpy(ops.cast(variable, "float32"))
                    for path, variable in variables_by_path(self._elmo.bilm).items()
                    if path.startswith("char_cnn/") == is_for_tokens
                }
                dtype = self._dtype
                if dtype == "int8" and overflows_in_int8(cpu_flags()):
                    dtype = "uint8"
                model = make_model(self._elmo.config, weights, dtype)
                self._sessions[make_model] = _start(model)
            return self._sessions[make_model]


def missing_packages() -> list[str]:
    """Return the names of the packages that this engine needs and that are not installed."""
    return [name for name in ("onnx", "onnxruntime") if not importlib.util.find_spec(name)]


def _run_options() -> Any:
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.only_execute_path_to_fetches = True  # Skip the layers above the wanted ones.
    return options


def _start(model: Any) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Without a number, ONNX Runtime binds threads to cores, the same cores in every process.
    # OMP_NUM_THREADS can be a list with a number for each level of nesting.
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    count = int(given) if given.isdecimal() else 0
    options.intra_op_num_threads = count or _count_cores()
    options.log_severity_level = 3
    # Idle threads must not spin: they would keep cores from other processes.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _count_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _stack(outputs: dict[str, np.ndarray], layers: Sequence[int]) -> np.ndarray:
    """Return the representations of some layers, batch first, without boundary tokens."""
    tokens, batch, width = outputs["forward_0"].shape
    stacked = np.empty((batch, tokens - 2, len(layers), 2 * width), "float32")
    for place, layer in enumerate(layers):
        for d, direction in enumerate(DIRECTIONS):
            inside = outputs[f"{direction}_{layer}"][1:-1]
            stacked[:, :, place, d * width : (d + 1) * width] = np.moveaxis(inside, 0, 1)
    return stacked
