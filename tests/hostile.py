"""Truncated and flipped files of every kind. Each must load, or be refused by name.

``python -m tests.hostile SEED COUNT [KIND ...]`` makes ``COUNT`` mutants of every kind of file in
``KINDS``, and prints all failures as JSON. It runs in a separate process with limits of memory and
time, because some of these files could end the process.

For a new kind of file add an entry to ``KINDS``: a function that writes good files into a folder,
the name of the file to change, and a function that loads it.
"""

import functools
import json
import pathlib
import resource
import signal
import sys
import tempfile
import traceback
import warnings

import numpy as np

from keras_elmo import LayerDataset
from keras_elmo.formats.hdf5 import write_arrays
from keras_elmo.presets import open_preset
from keras_elmo.pretraining.language_model_files import read_language_model
from tests import foreign_files
from tests.conftest import make_arrays, make_config, write_preset
from tests.test_presets import tarred, zipped

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


def write_model(folder):
    config = make_config()
    write_preset(folder, config, make_arrays(config))
    (folder / "vocab.txt").write_text("<S>\n</S>\n<UNK>\né\nfox\n", "utf-8")
    shape = (5, config.projection_dim)
    softmax = {"softmax/W": np.ones(shape, "float32"), "softmax/b": np.ones(5, "float32")}
    write_arrays(folder / "softmax.hdf5", softmax)


def write_archive(folder, pack, name):
    write_model(folder / "files")
    pack(folder / name, {p.name: p.read_bytes() for p in (folder / "files").iterdir()})


def write_layers(folder):
    arrays = {str(i): np.ones((3, i + 1, 8), "float32") for i in range(4)}
    write_arrays(folder / "layers.hdf5", arrays)


def write_training(folder):
    foreign_files.write_training(folder, make_config(), make_arrays(make_config()))


def write_allennlp(folder, is_zip):
    (folder / "options.json").write_text(json.dumps(make_config().to_options()))
    tensors = foreign_files.allennlp_tensors(make_arrays(make_config()))
    foreign_files.write_allennlp(folder, tensors, is_zip)


def write_many_langs(folder):
    config = make_config()
    foreign_files.write_many_langs(folder, config, make_arrays(config), "abc", ["fox", "é"], 5)


def load_preset(path):
    files = path if path.suffix in (".zip", ".gz") else path.parent
    values = open_preset(files).read().values.values()
    assert all(np.isfinite(array).all() for array in values)


def load_language_model(path):
    model, vocabulary = read_language_model(path.parent)
    assert len(vocabulary) == 5 and model.softmax_kernel.shape[0] == 5


def load_layers(path):
    dataset = LayerDataset(path)
    for batch in (dataset[i] for i in range(len(dataset))):
        assert np.isfinite(batch["layers"]).all() and batch["layers"].ndim == 4


write_zip = functools.partial(write_archive, pack=zipped, name="preset.zip")
write_tar = functools.partial(write_archive, pack=tarred, name="preset.tar.gz")
KINDS = {
    "options": (write_model, "options.json", load_preset),
    "weights": (write_model, "weights.hdf5", load_preset),
    "softmax": (write_model, "softmax.hdf5", load_language_model),
    "vocabulary": (write_model, "vocab.txt", load_language_model),
    "zip": (write_zip, "preset.zip", load_preset),
    "tar": (write_tar, "preset.tar.gz", load_preset),
    "layers": (write_layers, "layers.hdf5", load_layers),
    "index": (write_training, "model.ckpt-7.index", load_preset),
    "shard": (write_training, "model.ckpt-7.data-00000-of-00001", load_preset),
    "torch": (functools.partial(write_allennlp, is_zip=True), "weights.th", load_preset),
    "old torch": (functools.partial(write_allennlp, is_zip=False), "weights.th", load_preset),
    "dictionary": (write_many_langs, "char.dic", load_preset),
    "architecture": (write_many_langs, "cnn.json", load_preset),
}


def attack(kind, seed, count):
    """Load mutants of a kind of file, and return a text for each failure."""
    wrong = []
    write, name, load = KINDS[kind]
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / name
        write(path.parent)
        content = path.read_bytes()
        load(path)
        for number in range(count):
            mutate = (flip_bytes, truncate)[number % 2]
            path.write_bytes(mutate(content, np.random.default_rng([seed, number])))
            what = f"{kind} {number} {mutate.__name__}"
            print(what, flush=True)
            signal.alarm(SECONDS)  # end the process if a library loops
            try:
                load(path)
            except (ValueError, OSError) as error:
                if path.stem not in str(error) and str(path.parent) not in str(error):
                    wrong.append(f"{what}: without the file's name: {error}")
            except BaseException as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                wrong.append(f"{what}: {error!r} in {where.name}, line {where.lineno}")
    return wrong


def main(seed, count, *kinds):
    """Load mutants in this process, with limited memory. Print the failures as JSON, last."""
    warnings.simplefilter("ignore")  # about missing options
    for kind in kinds or KINDS:  # let the backend allocate its memory before the limit
        attack(kind, int(seed), 0)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    wrong = {kind: attack(kind, int(seed), int(count)) for kind in kinds or KINDS}
    signal.alarm(0)
    print(json.dumps({kind: found for kind, found in wrong.items() if found}))


if __name__ == "__main__":
    main(*sys.argv[1:])
