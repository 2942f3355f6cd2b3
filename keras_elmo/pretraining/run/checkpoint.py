"""The whole state of a training run in one file."""

import json

import h5py
import keras

from keras_elmo.checkpoints.files import atomic_write


def save_checkpoint(path, variables: dict, facts: dict) -> None:
    """Write variables and facts; the file at ``path`` is the old one or the new one, whole.

    Args:
        path: Path of the hdf5 file.
        variables: Lists of Keras variables by the name of their group.
        facts: Anything that JSON holds.
    """
    with atomic_write(path) as (temporary,), h5py.File(temporary, "w") as file:
        file.attrs["facts"] = json.dumps(facts)
        for name, variable in _named(variables).items():
            # A copy: on several devices TensorFlow keeps one value a device.
            file[name] = keras.ops.convert_to_numpy(keras.ops.copy(variable))


def load_checkpoint(path, variables: dict) -> dict:
    """Assign the variables of some groups of a file, all or none, and return the facts.

    Raises:
        ValueError: If the file holds other variables, or variables of other shapes.
    """
    variables = _named(variables)
    with h5py.File(path, "r") as file:
        facts = json.loads(file.attrs["facts"])
        groups = {name.partition("/")[0] for name in variables}
        found = {f"{g}/{name}": d.shape for g in groups for name, d in file.get(g, {}).items()}
        expected = {name: tuple(variable.shape) for name, variable in variables.items()}
        if expected != found:
            odd = sorted(set(expected.items()) ^ set(found.items()))
            raise ValueError(
                f"Checkpoint {path} does not fit this model and optimizer. "
                f"Received: {odd[:6]}. Resume with the options that the run began with"
            )
        arrays = {name: file[name][()] for name in found}
    for name, variable in variables.items():
        variable.assign(arrays[name])
    return facts


def _named(variables):
    """Return the variables by a name that is theirs alone.

    Not their path: Keras numbers optimizers and seed generators through the whole process.
    """
    return {
        f"{group}/{i:04}_{variable.name.replace('/', '.')}": variable
        for group, members in variables.items()
        for i, variable in enumerate(members)
    }
