"""Check tensors against the expected names, shapes and types, before and after they are read."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from keras_elmo.utils.checks import invalid

Shape: TypeAlias = tuple[int, ...]

_LARGEST_FLOAT32 = np.finfo("float32").max
_MOST_PROBLEMS = 20


def check_tensors(
    name: str,
    tensors: Mapping[str, Any],
    expected: Mapping[str, Shape],
    kinds: str = "f",
) -> None:
    """Check that a file contains the expected tensors. One error names every problem.

    The names, the shapes and the ``kinds`` of NumPy dtypes must be the expected ones. The values
    of NumPy arrays must be finite in float32; datasets of h5py are not read.
    The ``ValueError`` begins with ``name``, the kind and name of the file.
    """
    problems = []
    for key, shape in expected.items():
        tensor = tensors.get(key)
        if tensor is None:
            problems.append(f"'{key}' is missing, expected shape {tuple(shape)}")
        elif tensor.dtype.kind not in kinds:
            wanted = "floats" if kinds == "f" else "numbers"
            problems.append(f"'{key}' must contain {wanted}, found dtype {tensor.dtype}")
        elif tensor.shape != tuple(shape):
            problems.append(f"'{key}' has shape {tensor.shape}, expected {tuple(shape)}")
        elif isinstance(tensor, np.ndarray) and not (np.abs(tensor) <= _LARGEST_FLOAT32).all():
            problems.append(f"'{key}' contains NaN, infinity, or values beyond float32")
    problems += [
        f"'{key}' is not expected, found shape {tensor.shape}"
        for key, tensor in tensors.items()
        if key not in expected
    ]
    if len(problems) > _MOST_PROBLEMS:
        problems[_MOST_PROBLEMS:] = [f"and {len(problems) - _MOST_PROBLEMS} more"]
    if problems:
        advice = "Check that all files belong to one model, or fetch them again"
        raise invalid(f"{name} does not fit, nothing was loaded", "; ".join(problems), advice)
