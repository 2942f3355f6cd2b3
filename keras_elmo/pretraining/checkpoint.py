"""The whole state of a training run in one file."""

import json

import h5py
import numpy as np

from keras_elmo.checkpoints.files import replacing
from keras_elmo.checkpoints.rows import to_float32


def save(path, variables: dict, facts: dict) -> None:
    """Write variables and facts; the file at ``path`` is the old one or the new one, whole.

    Args:
        path: Path of the hdf5 file.
        variables: Keras variables by name.
        facts: Anything that JSON holds.
    """
    with replacing(path) as (temporary,), h5py.File(temporary, "w") as file:
        file.attrs["facts"] = json.dumps(facts)
        for name, variable in variables.items():
            file[name] = _array(variable)


def load(path, variables: dict) -> dict:
    """Assign the variables of a file, all of them or none, and return its facts.

    Raises:
        ValueError: If the file holds other variables, or variables of other shapes.
    """
    with h5py.File(path, "r") as file:
        facts = json.loads(file.attrs["facts"])
        expected = {name: tuple(variable.shape) for name, variable in variables.items()}
        found = {}
        file.visititems(
            lambda name, item: found.update({name: item.shape})
            if isinstance(item, h5py.Dataset)
            else None
        )
        if expected != found:
            odd = sorted(set(expected.items()) ^ set(found.items()))
            raise ValueError(
                f"Checkpoint {path} is not one of this model and optimizer. "
                f"Received: {odd[:6]}. Resume with the options that the run began with"
            )
        arrays = {name: file[name][()] for name in found}
    for name, variable in variables.items():
        variable.assign(arrays[name])
    return facts


def _array(variable):
    if variable.dtype in ("float16", "bfloat16"):
        return to_float32(variable)
    return np.asarray(variable.numpy())
