"""The checkpoint of a run: all of its variables in one file."""

import concurrent.futures
import json
import os
import pathlib

import keras
import numpy as np

from keras_elmo.formats.checks import check_tensors
from keras_elmo.formats.hdf5 import Hdf5Reader, write_arrays
from keras_elmo.utils.files import PathLike, atomic_write
from keras_elmo.utils.threads import run_in_thread


class CheckpointWriter:
    """Write checkpoints in a thread while the training continues.

    ``save``, ``check`` and ``wait`` raise the ``OSError`` of a checkpoint that could not be
    written, once.

    Args:
        path: path. The hdf5 file.

    Examples:
        >>> writer = CheckpointWriter("checkpoint.hdf5")
        >>> writer.save({"model": [keras.Variable([1.0], name="w")]}, {"step": 7})
        >>> writer.wait()
        >>> load_checkpoint("checkpoint.hdf5", {"model": [keras.Variable([0.0], name="w")]})
        {'step': 7}
    """

    def __init__(self, path: PathLike) -> None:
        self.path = pathlib.Path(path)
        self._pending: concurrent.futures.Future | None = None

    def save(self, variables: dict, facts: dict) -> None:
        """Copy the variables and start to write them; the file changes as a whole.

        Args:
            variables: dict. Lists of Keras variables by the name of their group.
            facts: dict. Anything that JSON can hold.
        """
        self.wait()
        arrays = {name: to_numpy(variable) for name, variable in _named(variables).items()}
        arrays = {name: x if x.flags.owndata else x.copy() for name, x in arrays.items()}
        self._pending = run_in_thread(self._write, arrays, json.dumps(facts))

    def check(self) -> None:
        """Raise the error of a failed checkpoint, without waiting."""
        if self._pending and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the last checkpoint is written."""
        if self._pending:
            # After an interrupt here, the next call waits again.
            concurrent.futures.wait([self._pending])
            pending, self._pending = self._pending, None
            pending.result()

    def _write(self, arrays: dict, facts: str) -> None:
        with atomic_write(self.path) as temporary:
            write_arrays(temporary, arrays, {"facts": facts})
            # There is no older checkpoint: after a power failure the new one must be complete.
            with open(temporary, "rb+") as file:
                os.fsync(file.fileno())


def to_numpy(variable: keras.Variable) -> np.ndarray:
    """Return the value of a variable that is equal on all devices."""
    if keras.backend.backend() == "tensorflow":
        variable = keras.ops.copy(variable)  # TensorFlow keeps one value per device
    return keras.ops.convert_to_numpy(variable)


def load_checkpoint(path: PathLike, variables: dict) -> dict:
    """Assign some groups of variables, all or none, and return the facts.

    Raises:
        OSError: If the file is missing or damaged.
        ValueError: If the file contains other variables or other shapes.
    """
    variables = _named(variables)
    groups = {name.partition("/")[0] for name in variables}
    remedy = "Begin anew: there is no older checkpoint"
    with Hdf5Reader(path, kind="Checkpoint", remedy=remedy) as file:
        text = file.attribute("facts")
        try:
            facts = json.loads(text)
        except (TypeError, json.JSONDecodeError, RecursionError) as error:
            facts = error
        if not isinstance(facts, dict):
            raise ValueError(
                f"Checkpoint {path} must contain the facts of a run as a JSON object. "
                f"Received: {facts!r:.60}"
            )
        declared = {n: file.declared(n) for n in file.walk() if n.partition("/")[0] in groups}
        expected = {name: tuple(variable.shape) for name, variable in variables.items()}
        check_tensors(
            file.name,
            declared,
            expected,
            kinds="fiu",
            fits="this model and optimizer",
            remedy="Resume with the options that the run began with",
        )
        arrays = {name: file.read(name) for name in expected}
    for name, variable in variables.items():
        variable.assign(arrays[name])
    return facts


def _named(variables: dict) -> dict:
    """Give every variable a unique name.

    Its path would not do: Keras numbers optimizers and seed generators across the process.
    """
    return {
        f"{group}/{i:04}_{variable.name.replace('/', '.')}": variable
        for group, members in variables.items()
        for i, variable in enumerate(members)
    }
