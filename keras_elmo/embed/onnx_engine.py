"""Compute the two halves of a biLM with ONNX Runtime, from NumPy arrays to NumPy arrays."""

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from keras_elmo.config import DIRECTIONS
from keras_elmo.formats.base import BiLMFile
from keras_elmo.formats.weight_mapping import to_float32
from keras_elmo.layer_choice import LayerChoice
from keras_elmo.onnx.bilm_graph import check_alphabet
from keras_elmo.onnx.models import part_model
from keras_elmo.utils.cpu import count_cores, cpu_flags, overflows_in_int8
from keras_elmo.utils.extras import import_extra

PACKAGES = ("onnx", "onnxruntime")


class OnnxEngine:
    """Compute what ``KerasEngine`` computes, with ONNX Runtime on the CPU.

    The first call takes longer: ONNX Runtime arranges the weights for its matrix products.

    Args:
        bilm: BiLMFile. The biLM.
        dtype: str. ``"float32"``, or ``"int8"`` for matrix products of eight bits.

    Attributes:
        bilm: BiLMFile. As the argument.

    Raises:
        ImportError: If ONNX or ONNX Runtime is not installed.
        ValueError: If the biLM reads code points.
    """

    def __init__(self, bilm: BiLMFile, dtype: str) -> None:
        names = 'Embedder(engine="onnxruntime")', "ONNX and ONNX Runtime", "onnx"
        _, onnxruntime = [import_extra(module, *names) for module in PACKAGES]
        check_alphabet(bilm.config)
        self.bilm, self._dtype = bilm, dtype
        self._run_options = onnxruntime.RunOptions()
        self._run_options.only_execute_path_to_fetches = True  # skip higher layers
        # With its constants, which a session reads and does not own.
        self._sessions: dict[str, tuple[Any, dict]] = {}
        self._locks = {part: threading.Lock() for part in ("char_cnn", *DIRECTIONS)}

    def represent(self, ids: np.ndarray) -> np.ndarray:
        """Compute what ``KerasEngine.represent`` computes."""
        return self._session("char_cnn").run(["token"], {"ids": ids})[0]

    def contextualize(
        self, tokens: np.ndarray, mask: np.ndarray, choice: LayerChoice
    ) -> np.ndarray:
        """Compute what ``KerasEngine.contextualize`` computes."""
        tokens = np.ascontiguousarray(np.moveaxis(tokens, 1, 0))
        inputs = {"token": tokens, "lengths": mask.sum(axis=1, dtype="int64")}

        def run(direction: str) -> list[np.ndarray]:
            names = [f"{direction}_{layer}" for layer in choice.layers if layer]
            session = self._session(direction)
            found = session.run(names, inputs, self._run_options) if names else []
            layers = [tokens, *found] if 0 in choice.layers else found
            return layers if choice.weights is None else [choice.combine(layers)]

        stacked = _stack(*(_run_both if count_cores() > 1 else map)(run, DIRECTIONS))
        return stacked if choice.weights is None else stacked[:, :, 0]

    def _session(self, part: str) -> Any:
        """Return the session of a part of the biLM; make it at the first call.

        Args:
            part: str. ``"char_cnn"``, ``"forward"`` or ``"backward"``.
        """
        with self._locks[part]:
            if part not in self._sessions:
                weights = {
                    path: to_float32(array)
                    for path, array in self.bilm.values.items()
                    if path.startswith(part)
                }
                dtype = self._dtype
                if dtype == "int8" and overflows_in_int8(cpu_flags()):
                    dtype = "uint8"
                model, constants = part_model(self.bilm.config, weights, part, dtype)
                cores = count_cores()
                if part in DIRECTIONS:
                    cores = -(-cores // len(DIRECTIONS))
                self._sessions[part] = _start(model, constants, cores), constants
            return self._sessions[part][0]


def _run_both(run: Callable[[str], Any], directions: tuple[str, str]) -> tuple[Any, Any]:
    """Return the results of both directions, each of which takes a core.

    So no product must be split between cores. ONNX Runtime computes without the lock of Python.
    """
    forward: concurrent.futures.Future = concurrent.futures.Future()

    def run_forward() -> None:
        try:
            forward.set_result(run(directions[0]))
        except BaseException as error:
            forward.set_exception(error)

    # An executor would refuse the work of other threads once the main thread has ended.
    threading.Thread(target=run_forward).start()
    try:
        backward = run(directions[1])
    finally:
        concurrent.futures.wait([forward])
    return forward.result(), backward


def _start(model: Any, constants: dict[str, np.ndarray], threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Without a number, ONNX Runtime binds threads to cores, the same cores in every process.
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # Idle threads must not spin: they would keep cores from other processes.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in constants.values()]
    options.add_external_initializers(list(constants), values)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _stack(*directions: list[np.ndarray]) -> np.ndarray:
    """Return the layers of both directions, batch first, without boundary tokens."""
    tokens, batch, width = directions[0][0].shape
    stacked = np.empty((batch, tokens - 2, len(directions[0]), 2 * width), "float32")
    for d, layers in enumerate(directions):
        for place, layer in enumerate(layers):
            stacked[:, :, place, d * width : (d + 1) * width] = np.moveaxis(layer[1:-1], 0, 1)
    return stacked
