"""The old place of ``keras_elmo.checkpoints.presets``."""

from keras_elmo.checkpoints.presets import bundled
from keras_elmo.checkpoints.presets import read_preset as _read

__all__ = ["bundled", "read_preset"]


def read_preset(preset) -> tuple[dict, dict, str]:
    """Return the options, the tensors by name, and the name of the weight file."""
    bilm = _read(preset)
    return bilm.config.to_options(), bilm.arrays, bilm.origin
