"""Truncated and flipped files of every kind. Each must load, or be refused by name.

``python -m tests.hostile SEED COUNT [KIND ...]`` makes ``COUNT`` mutants of every kind of file in
``KINDS``, and prints all failures as JSON. It runs in a separate process with limits of memory and
time, because some of these files could end the process.

For a new kind of file add an entry to ``KINDS``: a function that writes good files into a folder
and returns the one to change, and a function that loads it.
"""

import json
import pathlib
import resource
import signal
import sys
import tempfile
import traceback
import warnings
import zipfile

import numpy as np

from keras_elmo import LayerDataset
from keras_elmo.formats.hdf5 import write_arrays
from keras_elmo.presets import Preset
from keras_elmo.pretraining.language_model_files import read_language_model
from tests import foreign_files
from tests.conftest import make_arrays, make_config, write_preset
from tests.test_presets import tarred

MEMORY = 2 << 30  # in addition to the memory at the start
SECONDS = 20


def flip_bytes(content, rng):
    changed = bytearray(content)
    for _ in range(rng.integers(1, 17)):
        # The first kilobytes contain the structure of most files.
        end = min(len(changed), 4096) if rng.random() < 0.6 else len(changed)
        changed[rng.integers(end)] = rng.integers(256)
    return bytes(changed)


def truncate(content, rng):
    return content[: rng.integers(len(content))]


# Functions that write good files, and functions that load them.


def _write_preset(folder, name):
    config = make_config()
    write_preset(folder, config, make_arrays(config))
    (folder / "vocab.txt").write_text("<S>\n</S>\n<UNK>\né\nfox\n", "utf-8")
    shape = (5, config.projection_dim)
    softmax = {"softmax/W": np.ones(shape, "float32"), "softmax/b": np.ones(5, "float32")}
    write_arrays(folder / "softmax.hdf5", softmax)
    return folder / name


def _load_preset(path):
    files = path if path.suffix in (".zip", ".gz") else path.parent
    values = Preset(files).read().values()
    assert all(np.isfinite(array).all() for array in values.values())


def _load_language_model(path):
    model, vocabulary = read_language_model(path.parent)
    assert len(vocabulary) == 5 and model.softmax_kernel.shape[0] == 5


def _write_zip(folder):
    files = _write_preset(folder / "files", "options.json").parent
    with zipfile.ZipFile(folder / "preset.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(files.iterdir()):
            archive.write(path, path.name)
    return folder / "preset.zip"


def _write_tar(folder):
    files = _write_preset(folder / "files", "options.json").parent
    return tarred(folder / "preset.tar.gz", {p.name: p.read_bytes() for p in files.iterdir()})


def _write_layers(folder):
    arrays = {str(i): np.ones((3, i + 1, 8), "float32") for i in range(4)}
    write_arrays(folder / "layers.hdf5", arrays)
    return folder / "layers.hdf5"


def _load_layers(path):
    dataset = LayerDataset(path)
    for batch in (dataset[i] for i in range(len(dataset))):
        assert np.isfinite(batch["layers"]).all() and batch["layers"].ndim == 4


def _write_training(folder, name):
    config = make_config()
    return foreign_files.write_training(folder, config, make_arrays(config)) / name


def _write_archive(folder, is_zip):
    config = make_config()
    (folder / "options.json").write_text(json.dumps(config.to_options()))
    tensors = foreign_files.allennlp_tensors(make_arrays(config))
    return foreign_files.write_allennlp(folder, tensors, is_zip) / "weights.th"


def _write_many_langs(folder, name):
    config = make_config()
    foreign_files.write_many_langs(folder, config, make_arrays(config), "abc", ["fox", "é"], 5)
    return folder / name


_SHARD = ".data-00000-of-00001"
KINDS = {
    "options": (lambda folder: _write_preset(folder, "options.json"), _load_preset),
    "weights": (lambda folder: _write_preset(folder, "weights.hdf5"), _load_preset),
    "softmax": (lambda folder: _write_preset(folder, "softmax.hdf5"), _load_language_model),
    "vocabulary": (lambda folder: _write_preset(folder, "vocab.txt"), _load_language_model),
    "zip": (_write_zip, _load_preset),
    "tar": (_write_tar, _load_preset),
    "layers": (_write_layers, _load_layers),
    "index": (lambda folder: _write_training(folder, "model.ckpt-7.index"), _load_preset),
    "shard": (lambda folder: _write_training(folder, f"model.ckpt-7{_SHARD}"), _load_preset),
    "torch": (lambda folder: _write_archive(folder, True), _load_preset),
    "old torch": (lambda folder: _write_archive(folder, False), _load_preset),
    "dictionary": (lambda folder: _write_many_langs(folder, "char.dic"), _load_preset),
    "architecture": (lambda folder: _write_many_langs(folder, "cnn.json"), _load_preset),
}


def attack(kind, seed, count, tell=lambda *_: None) -> list[str]:
    """Load mutants of a kind of file, and return a text for each failure."""
    wrong = []
    write, load = KINDS[kind]
    with tempfile.TemporaryDirectory() as folder:
        path = write(pathlib.Path(folder))
        content = path.read_bytes()
        load(path)
        for number in range(count):
            rng = np.random.default_rng([seed, number])
            mutate = (flip_bytes, truncate)[number % 2]
            path.write_bytes(mutate(content, rng))
            what = f"{kind} {number} {mutate.__name__}"
            tell(what)
            try:
                load(path)
            except (ValueError, OSError) as error:
                if path.stem not in str(error) and str(path.parent) not in str(error):
                    wrong.append(f"{what}: without the file's name: {error}")
            except BaseException as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                wrong.append(
                    f"{what}: {type(error).__name__}: {error} in {where.name}, line {where.lineno}"
                )
    return wrong


def main(seed, count, *kinds):
    """Load mutants in this process, with limited memory. Print the failures as JSON, last."""
    warnings.simplefilter("ignore")  # about unknown keys
    for kind in kinds or KINDS:  # let the backend allocate its memory before the limit
        attack(kind, int(seed), 0)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))

    def tell(what):
        print(what, flush=True)
        signal.alarm(SECONDS)  # end the process if a library loops

    wrong = {
        kind: found
        for kind in kinds or KINDS
        if (found := attack(kind, int(seed), int(count), tell))
    }
    signal.alarm(0)
    print(json.dumps(wrong))


if __name__ == "__main__":
    main(*sys.argv[1:])
