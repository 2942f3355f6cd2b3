"""Tensors of a file of PyTorch, and of nothing else that such a file can hold."""

import io
import pickle
import re
import warnings
import zipfile

import numpy as np

from keras_elmo.formats.archives import DAMAGE
from keras_elmo.formats.hdf5 import LARGEST_RATIO, SLACK

_LARGEST_FILE = 1 << 36
_ASKS_FOR_MORE = re.compile("unsupported (global|class)|unrecognized function|blocked", re.I)
_DAMAGE = (*DAMAGE, pickle.UnpicklingError, RuntimeError, AssertionError)


def read_tensors(files, name) -> dict:
    """Read a state dict, zipped or of the older format, whatever device it was saved on.

    Args:
        files: The ``Files`` that hold it.
        name: Of the file.

    Returns:
        Dict of NumPy arrays by name; floats are float32 or float64.

    Raises:
        ImportError: If PyTorch is not installed.
        OSError: If the file is damaged.
        ValueError: If it asks for anything but tensors, or does not hold them by name.
    """
    try:
        import torch
    except ImportError:
        raise ImportError(
            f"Reading {files.origin(name)} needs PyTorch: pip install 'keras-elmo[torch]'"
        ) from None
    origin, size = files.origin(name), files.size(name)
    try:
        file = files.file(name, _LARGEST_FILE)
        _check_zip(file, origin)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of old ways to pickle, which are read all the same
            state = torch.load(file, map_location="cpu", weights_only=True)
    except _Refused as error:
        raise ValueError(str(error)) from None
    except _DAMAGE as error:
        # PyTorch says first how to run what the file asks for.
        _, _, reason = str(error).rpartition("trusted source.")
        reason = " ".join(reason.partition("Check the documentation")[0].split())
        if _ASKS_FOR_MORE.search(reason):
            raise ValueError(
                f"PyTorch file {origin} must hold tensors only. Received: a pickle that asks for "
                f"more: {reason[:200]} It is not loaded"
            ) from None
        raise OSError(
            f"PyTorch file {origin} is damaged or not one of PyTorch's ({reason[:300]}). Fetch it "
            "again"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
        raise ValueError(
            f"PyTorch file {origin} must hold tensors by name. Received: {type(state).__name__}"
        )
    tensors = {key: x for key, x in state.items() if isinstance(x, torch.Tensor)}
    total = sum(x.numel() * x.element_size() for x in tensors.values())
    if total > LARGEST_RATIO * size + SLACK:
        raise ValueError(
            f"PyTorch file {origin} must hold the numbers of its tensors. Received: {total} bytes "
            f"in a file of {size}"
        )
    try:
        return {key: _as_numpy(x) for key, x in tensors.items()}
    except _DAMAGE as error:
        raise ValueError(
            f"PyTorch file {origin} must hold plain tensors. Received: {error!r:.200}"
        ) from error


class _Refused(Exception):
    """Carries a message past the net for errors of damage."""


def _check_zip(file, origin):
    """Refuse a zip whose members are packed, and could unpack to any size."""
    with open(file, "rb") if not hasattr(file, "read") else io.BytesIO(file.getvalue()) as opened:
        if opened.read(4) != b"PK\x03\x04":
            return
        with zipfile.ZipFile(opened) as archive:
            packed = [m.filename for m in archive.infolist() if m.compress_type]
    if packed:
        raise _Refused(
            f"PyTorch file {origin} must hold its tensors unpacked. Received: {packed[0][:100]!r}, "
            "packed"
        )


def _as_numpy(tensor):
    tensor = tensor.detach()
    if tensor.is_floating_point() and tensor.element_size() < 4:
        tensor = tensor.float()
    return np.array(tensor.numpy())
