"""Any source of a biLM to a preset of ours."""

import dataclasses
import json
import pathlib

from keras_elmo.formats.hdf5 import write_arrays
from keras_elmo.presets import Preset
from keras_elmo.utils.files import atomic_write, holds_files


def convert(source, directory, options=None) -> dict:
    """Write what a source holds as a preset, which needs no other program any more.

    ``options.json`` and ``weights.hdf5`` are bilm-tf's layout. Beside them are ``vocab.txt`` and
    ``softmax.hdf5`` of a language model, and ``scalar_mix.json`` of learned mixes, where the
    source has them.

    Args:
        source: As ``preset`` of ``ElmoLayer.from_preset``.
        directory: Where to; new or empty.
        options: As for ``ElmoLayer.from_preset``.

    Returns:
        Dict of ``recognised`` (the format), ``files`` (written), ``used`` and ``left`` (names of
        tensors).

    Raises:
        OSError: If a file is missing or damaged, or cannot be written.
        ValueError: If the source is not one of a biLM over characters, its parts do not fit
            together, or the directory holds something. Nothing is written then.
        ImportError: If it takes PyTorch to read the source, and there is none.
    """
    directory = pathlib.Path(directory)
    if directory.exists() and (not directory.is_dir() or holds_files(directory)):
        raise ValueError(
            "convert expects a directory that is new or empty. "
            f"Received: directory={str(directory)!r}"
        )
    preset = Preset(source, options)
    bilm, softmax, mixes = preset.read(), preset.read_softmax(), preset.read_mixes()
    vocabulary, _ = preset.source.read_vocabulary()
    used, left = preset.source.tensors()
    files = {
        "options.json": lambda path: _write_json(path, bilm.config.to_options()),
        "weights.hdf5": lambda path: write_arrays(path, _float32(bilm.arrays)),
    }
    if vocabulary is not None:
        files["vocab.txt"] = lambda path: path.write_bytes(("\n".join(vocabulary) + "\n").encode())
    if softmax is not None:
        files["softmax.hdf5"] = lambda path: write_arrays(path, _float32(softmax.arrays))
    if mixes:
        values = [dataclasses.asdict(mix) for mix in mixes]
        files["scalar_mix.json"] = lambda path: _write_json(path, values)
    directory.mkdir(parents=True, exist_ok=True)
    with atomic_write(*(directory / name for name in files)) as temporary:
        for write, path in zip(files.values(), temporary, strict=True):
            write(path)
    return {"recognised": preset.source.kind, "files": list(files), "used": used, "left": left}


def _write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _float32(arrays):
    return {name: array.astype("float32") for name, array in arrays.items()}
