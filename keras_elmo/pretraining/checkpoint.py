"""The whole state of a training run in one file."""

import concurrent.futures
import json

import keras

from keras_elmo.formats.checks import check_tensors
from keras_elmo.formats.hdf5 import open_hdf5, write_arrays
from keras_elmo.utils.files import atomic_write


class CheckpointWriter:
    """Write checkpoints beside the training.

    What is written is copied first, into host memory; a thread writes it.

    Args:
        path: Path of the hdf5 file.

    Example:

    >>> writer = CheckpointWriter("checkpoint.hdf5")
    >>> writer.save({"model": [keras.Variable([1.0], name="w")]}, {"step": 7})
    >>> writer.wait()
    >>> load_checkpoint("checkpoint.hdf5", {"model": [keras.Variable([0.0], name="w")]})
    {'step': 7}
    """

    def __init__(self, path):
        self.path = path
        self._written = None

    def save(self, variables: dict, facts: dict) -> None:
        """Begin to write; the file is the old one or the new one, whole.

        Args:
            variables: Lists of Keras variables by the name of their group.
            facts: Anything that JSON holds.

        Raises:
            OSError: If the checkpoint before could not be written.
        """
        self.wait()
        arrays = {name: _copy(variable) for name, variable in _named(variables).items()}
        pool = concurrent.futures.ThreadPoolExecutor(1)
        self._written = pool.submit(self._write, arrays, json.dumps(facts))
        pool.shutdown(wait=False)  # its thread ends with the file

    def check(self) -> None:
        """Do not wait, but if the last checkpoint could not be written say so.

        Raises:
            OSError: If it could not be.
        """
        if self._written and self._written.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the last checkpoint is written.

        Raises:
            OSError: If it could not be. The error comes once.
        """
        if self._written:
            concurrent.futures.wait([self._written])  # who is interrupted here waits again
            written, self._written = self._written, None
            written.result()

    def _write(self, arrays, facts):
        with atomic_write(self.path) as (temporary,):
            write_arrays(temporary, arrays, {"facts": facts})


def _copy(variable):
    """Return the value of a variable in memory of its own."""
    array = to_numpy(variable)
    return array if array.flags.owndata else array.copy()


def to_numpy(variable):
    """Return the value of a variable that is the same on all devices."""
    if keras.backend.backend() == "tensorflow":
        variable = keras.ops.copy(variable)  # TensorFlow keeps one value a device
    return keras.ops.convert_to_numpy(variable)


def load_checkpoint(path, variables: dict) -> dict:
    """Assign the variables of some groups of a file, all or none, and return the facts.

    Raises:
        OSError: If the file is missing or damaged.
        ValueError: If the file holds other variables, or variables of other shapes.
    """
    variables = _named(variables)
    groups = {name.partition("/")[0] for name in variables}
    remedy = "Begin anew: there is no older checkpoint"
    with open_hdf5(path, kind="Checkpoint", remedy=remedy) as file:
        facts = _facts(file, path)
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


def _facts(file, path):
    try:
        facts = json.loads(file.attribute("facts"))
        if isinstance(facts, dict):
            return facts
        reason = type(facts).__name__
    except (TypeError, json.JSONDecodeError, RecursionError) as error:
        reason = error
    raise ValueError(
        f"Checkpoint {path} must hold the facts of a run as a JSON object. Received: {reason}"
    )


def _named(variables):
    """Return the variables by a name that is theirs alone.

    Not their path: Keras numbers optimizers and seed generators through the whole process.
    """
    return {
        f"{group}/{i:04}_{variable.name.replace('/', '.')}": variable
        for group, members in variables.items()
        for i, variable in enumerate(members)
    }
