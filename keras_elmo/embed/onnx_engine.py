"""The biLM of an ElmoLayer in ONNX Runtime, as a function of NumPy arrays."""

import importlib.util
import os
import threading

import numpy as np

from keras_elmo.embed.weight_values import WeightValues
from keras_elmo.formats.weight_mapping import variables_by_path
from keras_elmo.layers.bilm import DIRECTIONS, lstm_names
from keras_elmo.onnx.bilm_graph import check_alphabet
from keras_elmo.onnx.models import lstm_model, token_model
from keras_elmo.utils.cpu import cpu_flags, overflows_in_int8


class OnnxEngine:
    """Do what ``KerasEngine`` does, in ONNX Runtime on the CPU.

    It packs the weights for its matrix products once, so a change of them costs seconds.

    Args:
        elmo: A built ``ElmoLayer``.
        dtype: ``"float32"``, or ``"int8"`` for matrix products of eight bits.

    Raises:
        ImportError: If ONNX or ONNX Runtime is not there.
        ValueError: If the biLM reads code points.
    """

    def __init__(self, elmo, dtype="float32"):
        for name in ("onnx", "onnxruntime"):
            if not importlib.util.find_spec(name):
                raise ImportError(
                    'Embedder(engine="onnxruntime") needs ONNX and ONNX Runtime. Received: no '
                    f"module {name}. Install them: pip install 'keras-elmo[onnx]'"
                )
        check_alphabet(elmo.config)
        self._elmo = elmo
        self._dtype = dtype
        self._sessions = {}
        self._lock = threading.Lock()

    def facts(self) -> dict:
        """Return what decides the bits of a result, for JSON."""
        return {
            "biLM": self._elmo.fingerprint(),
            "options": self._elmo.config.digest(),
            "dtype": self._dtype,
            "engine": "onnxruntime",
        }

    def token_weights(self) -> WeightValues:
        """Return the weights that token representations depend on, as they are now."""
        return WeightValues(self._variables("char_cnn").values())

    def all_weights(self) -> WeightValues:
        """Return all weights of the biLM, as they are now."""
        return WeightValues(self._variables("").values())

    def represent(self, ids, weights) -> np.ndarray:
        """Do as ``KerasEngine.represent``."""
        session = self._session("char_cnn", token_model, lambda old: old is weights, weights)
        return session.run(["token"], {"ids": ids})[0]

    def contextualize(self, tokens, mask, layers) -> np.ndarray:
        """Do as ``KerasEngine.contextualize``."""
        config = self._elmo.config
        tokens = np.ascontiguousarray(np.moveaxis(tokens, 1, 0))
        names = [name for name in lstm_names(config) if _is_wanted(name, layers)]
        found = {"forward_0": tokens, "backward_0": tokens}
        if names:
            session = self._session("ward_", lstm_model, WeightValues.are_current)
            inputs = {"token": tokens, "mask": mask.T[..., None]}
            found |= zip(names, session.run(names, inputs, _only_what_is_asked()), strict=True)
        if isinstance(layers, int):
            return _stack(found, [layers])[:, :, 0]
        if layers == "top":
            return _stack(found, [config.n_layers])[:, :, 0]
        stacked = _stack(found, range(config.n_layers + 1))
        return stacked if layers == "all" else stacked.mean(axis=2)

    def _variables(self, part):
        """Return the variables of the biLM whose path holds a word."""
        self._elmo.check_weights()
        variables = variables_by_path(self._elmo.bilm)
        return {path: v for path, v in variables.items() if part in path}

    def _session(self, part, make, fits, weights=None):
        """Return the session of the weights that fit, made anew if it has others."""
        with self._lock:
            held, session = self._sessions.get(part, (None, None))
            if session is None or not fits(held):
                variables = self._variables(part)
                held = weights or WeightValues(variables.values())
                arrays = dict(zip(variables, held.as_float32(), strict=True))
                session = _start(make(self._elmo.config, arrays, self._dtype == "int8"))
                self._sessions[part] = held, session
            return session


def _is_wanted(name, layers):
    return not isinstance(layers, int) or int(name.rpartition("_")[2]) == layers


def _only_what_is_asked():
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.only_execute_path_to_fetches = True
    return options


def _start(model):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Without a number it binds its threads to cores, the same ones in every process.
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # a number for each level
    count = int(given) if given.isdecimal() else 0
    options.intra_op_num_threads = count or _count_cores()
    options.log_severity_level = 3
    # Threads that wait for more would take the cores from everyone else.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if overflows_in_int8(cpu_flags()):
        # Without the instructions for it, so that nothing is lost: exact, and much slower.
        options.add_session_config_entry("session.x64quantprecision", "1")
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _count_cores():
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _stack(found, layers):
    """Return the representations of some layers without the boundaries, the batch first."""
    tokens, batch, width = found["forward_0"].shape
    stacked = np.empty((batch, tokens - 2, len(layers), 2 * width), "float32")
    for place, layer in enumerate(layers):
        for d, direction in enumerate(DIRECTIONS):
            part = found[f"{direction}_{layer}"][1:-1]
            stacked[:, :, place, d * width : (d + 1) * width] = np.moveaxis(part, 0, 1)
    return stacked
