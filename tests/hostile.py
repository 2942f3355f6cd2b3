"""Mutants of every kind of file that the package reads. Each must load, or be refused by name.

``python -m tests.hostile SEED COUNT [KIND ...]`` makes ``COUNT`` mutants of every kind of file in
``KINDS``, and prints all failures as JSON. It runs in a separate process with limits of memory and
time, because some of these files could end the process.

For a new kind of file add an entry to ``KINDS``: a function that writes a good file, a function
that loads it, and the mutators.
"""

import dataclasses
import io
import itertools
import json
import os
import pathlib
import resource
import signal
import struct
import sys
import tarfile
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable

import h5py
import numpy as np

from keras_elmo.formats.hdf5 import write_arrays

MEMORY = 1 << 30  # in addition to the memory at the start
SECONDS = 20

# Mutators take the content of a good file and a random generator, and return new content.


def flip_bytes(content, rng):
    changed = bytearray(content)
    for _ in range(rng.integers(1, 17)):
        # The first kilobytes hold the structure of most files.
        end = min(len(changed), 4096) if rng.random() < 0.6 else len(changed)
        changed[rng.integers(end)] = rng.integers(256)
    return bytes(changed)


def truncate(content, rng):
    return content[: rng.integers(len(content))]


def overwrite(content, rng):
    start = rng.integers(len(content))
    size = int(rng.integers(1, 512))
    filler = [b"\0" * size, b"\xff" * size, rng.bytes(size)][rng.integers(3)]
    return content[:start] + filler + content[start + size :]


def insert(content, rng):
    start = rng.integers(len(content))
    return content[:start] + rng.bytes(int(rng.integers(1, 64))) + content[start:]


def replace(content, rng):
    """Replace the file by something else."""
    others = [b"", b"\0", b"<html>404</html>", b"PK\x03\x04", b"\x1f\x8b\x08", rng.bytes(3000)]
    return others[rng.integers(len(others))]


BYTES = [flip_bytes, flip_bytes, truncate, overwrite, insert, replace]

_VALUES = [
    *("0", "-1", "1e9", "1000000000", "1000000", "9" * 5000, "1e999", "NaN", "-Infinity", "1.5"),
    *("null", "true", '"x"', '"\\ud800"', "[]", "{}", "[[1]]", "[[1,-2]]", "[[1,1000000000]]"),
    *("[" * 100_000, "[" * 500 + "]" * 500, '{"a":' * 3000 + "1" + "}" * 3000),
]


def change_json(content, rng):
    """Give a random key a random value, remove it, or repeat it."""
    objects = [json.loads(content)]
    for value in objects:
        objects += [v for v in value.values() if isinstance(v, dict)]
    chosen = objects[rng.integers(len(objects))]
    key = list(chosen)[rng.integers(len(chosen))]
    action = rng.integers(4)
    if action == 0:
        del chosen[key]
    else:
        value, chosen[key] = chosen[key], "MARK"
    text = json.dumps(objects[0])
    if action == 1:
        both = f"{json.dumps(value)}, {json.dumps(key)}: {json.dumps(value)}"
        return text.replace('"MARK"', both).encode()
    return text.replace('"MARK"', _VALUES[rng.integers(len(_VALUES))]).encode()


def spoil_text(content, rng):
    spoils = [
        lambda: content + b"\xff",
        lambda: content.decode().encode("utf-16"),
        lambda: b"\xef\xbb\xbf" + content,
        lambda: content[:5] + b"\xc3\x28" + content[5:],
        lambda: content + b" " * (2 << 20),
        lambda: content.replace(b"\n", b"\r\n"),
        lambda: b"\0" * 100,
    ]
    return spoils[rng.integers(len(spoils))]()


def edit_hdf5(content, rng):
    """Edit the content with h5py."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "edited.hdf5"
        path.write_bytes(content)
        with h5py.File(path, "r+") as file:
            names = []
            file.visititems(lambda n, x: names.append(n) if isinstance(x, h5py.Dataset) else None)
            name = names[rng.integers(len(names))]
            _EDITS[rng.integers(len(_EDITS))](file, name, file[name], rng)
        return path.read_bytes()


def _replaced(make):
    def edit(file, name, dataset, rng):
        array = dataset[()] if dataset.dtype.kind != "O" else np.zeros(dataset.shape or 2, "f4")
        del file[name]
        make(file, name, array)

    return edit


def _declare(shape, **options):
    return _replaced(lambda f, n, a: f.create_dataset(n, shape, "f4", **options))


def _virtual(file, name, array):
    layout = h5py.VirtualLayout(array.shape or (1,), "f4")
    layout[...] = h5py.VirtualSource(".", name, shape=array.shape or (1,))
    file.create_virtual_dataset(name, layout)


def _with_value(value):
    def make(file, name, array):
        changed = np.array(array, "f4").reshape(-1)
        changed[: 1 + changed.size // 2] = value
        file[name] = changed.reshape(np.shape(array))

    return make


def _cycle(file, name, array):
    group = file.create_group(name)
    group["again"] = group


def _bad_name(file, name, array):
    file[name] = array
    h5py.h5o.link(file[name].id, file.id, b"bad\xff")


def _bomb(file, name, array):
    """Write a small chunk that unpacks to more than its declared size."""
    import zlib

    shape = tuple(max(size, 1) for size in np.shape(array)) or (1,)
    dataset = file.create_dataset(name, shape, "f4", chunks=shape, compression="gzip")
    try:
        dataset.id.write_direct_chunk((0,) * len(shape), zlib.compress(bytes(1 << 28), 9))
    except OSError:  # hdf5 stores the size of so small a chunk in fewer bytes
        dataset.id.write_direct_chunk((0,) * len(shape), zlib.compress(bytes(1 << 14), 9))


def _attributes(file, name, dataset, rng):
    for attribute in list(file.attrs):
        values = [3.5, b"\xff\xfe", np.zeros(3), "[" * 3000, h5py.Empty("f4"), dataset.ref]
        file.attrs[attribute] = values[rng.integers(len(values))]


_EDITS = [
    lambda file, name, dataset, rng: file.__delitem__(name),
    lambda file, name, dataset, rng: file.move(name, name + "x"),
    lambda file, name, dataset, rng: file.create_dataset("more", data=np.zeros(3, "f4")),
    _attributes,
    _replaced(lambda f, n, a: f.create_dataset(n, data=a[..., None])),
    _replaced(lambda f, n, a: f.create_dataset(n, data=np.reshape(a, -1)[:-1])),
    _replaced(lambda f, n, a: f.create_dataset(n, data=np.asarray(a, "i8"))),
    _replaced(lambda f, n, a: f.create_dataset(n, data=np.asarray(a, complex))),
    _replaced(lambda f, n, a: f.create_dataset(n, data=np.zeros(np.shape(a), bool))),
    _replaced(lambda f, n, a: f.create_dataset(n, data=np.zeros(np.shape(a), [("a", "f4")]))),
    _replaced(lambda f, n, a: f.create_dataset(n, np.shape(a), h5py.vlen_dtype("f4"))),
    _replaced(lambda f, n, a: f.create_dataset(n, np.shape(a), h5py.ref_dtype)),
    _replaced(lambda f, n, a: f.create_dataset(n, data="text")),
    _replaced(lambda f, n, a: f.create_dataset(n, data=b"\xff\xfe")),
    _replaced(lambda f, n, a: f.create_dataset(n, data=h5py.Empty("f4"))),
    _replaced(lambda f, n, a: f.create_group(n)),
    _replaced(lambda f, n, a: f.__setitem__(n, np.dtype("f4"))),
    _replaced(lambda f, n, a: f.__setitem__(n, h5py.SoftLink(f"/{n}"))),
    _replaced(lambda f, n, a: f.__setitem__(n, h5py.SoftLink("/gone"))),
    _replaced(lambda f, n, a: f.__setitem__(n, h5py.ExternalLink("gone.hdf5", "/x"))),
    _replaced(_with_value(np.nan)),
    _replaced(_with_value(np.inf)),
    _replaced(_virtual),
    _replaced(_cycle),
    _replaced(_bad_name),
    _replaced(_bomb),
    _declare((10**6, 10**6), chunks=(100, 100), compression="gzip"),
    _declare((10**6, 10**3, 10**3), chunks=(1, 100, 100)),
    _declare((10**9,)),
    _declare((3, 10**9)),
    _declare((3,), maxshape=(None,), chunks=(10**8,)),
    _declare((4,), external=[("gone.bin", 0, h5py.h5f.UNLIMITED)]),
]


def repack_zip(content, rng):
    """Write the zip anew with other names, sizes or compression methods."""
    packed = io.BytesIO()
    methods = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
    method = methods[rng.integers(4)]
    trick = rng.integers(8)
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(packed, "w", method) as new:
        for name in old.namelist():
            file = old.read(name)
            if trick == 0 and name.endswith(".hdf5"):
                with new.open(name, "w") as zeros:
                    for _ in range(80):
                        zeros.write(bytes(1 << 20))
            elif trick == 1:
                new.writestr(f"../{name}", file)
            elif trick == 2:
                new.writestr(f"a/{name}", file)
                new.writestr(f"b/{name}", file)
            elif trick == 3 and name.endswith(".json"):
                new.writestr(name, b" " * (2 << 20) + file)
            else:
                new.writestr(name, file)
    changed = packed.getvalue()
    if trick == 4:  # a name that is declared to be UTF-8 and is not
        changed = changed.replace(b"options.json", b"opti\xffns.json")
    if trick == 5:  # declare a member to be encrypted
        changed = bytearray(changed)
        changed[changed.rindex(b"PK\x01\x02") + 8] |= 1
    if trick >= 6:
        changed = flip_bytes(changed, rng)
    return bytes(changed)


def repack_tar(content, rng):
    """Write the tar.gz anew with links, devices, other names or sizes."""
    packed = io.BytesIO()
    trick = rng.integers(8)
    with (
        tarfile.open(fileobj=io.BytesIO(content)) as old,
        tarfile.open(fileobj=packed, mode="w:gz") as new,
    ):
        for member in old:
            file = old.extractfile(member).read()
            if trick == 0:
                member.name = f"../{member.name}"
            elif trick == 1:
                member.name = f"/{member.name}"
            elif trick in (2, 3):
                member.type = tarfile.SYMTYPE if trick == 2 else tarfile.LNKTYPE
                member.linkname, member.size = "/etc/passwd", 0
            elif trick == 4:
                member.type, member.size = tarfile.FIFOTYPE, 0
            elif trick == 5 and member.name.endswith(".hdf5"):
                file = bytes(80 << 20)
                member.size = len(file)
            elif trick == 6:
                member.pax_headers = {"size": "-5", "comment": "x" * 5000}
            new.addfile(member, io.BytesIO(file) if member.size else None)
    changed = packed.getvalue()
    return flip_bytes(changed, rng) if trick == 7 else changed


def change_index(content, rng):
    """Change bytes of a TensorFlow index, and correct its checksum."""
    from keras_elmo.formats import tensor_bundle
    from keras_elmo.formats.crc32c import masked_crc32c

    *_, offset, size = tensor_bundle._varints(content[-48:], 4)
    [(_, handle)] = tensor_bundle._pairs(tensor_bundle._block(content, offset, size))
    _, size = tensor_bundle._varints(handle, 2)
    block = bytearray(content[:size])
    for _ in range(rng.integers(1, 4)):
        block[rng.integers(len(block))] = [0, 0x7F, 0xFF, rng.integers(256)][rng.integers(4)]
    crc = masked_crc32c(bytes(block) + b"\0")
    return bytes(block) + b"\0" + struct.pack("<I", crc) + content[size + 5 :]


class _Calls:
    """An object that calls a function when it is unpickled."""

    def __init__(self, function, *arguments):
        self.answer = function, arguments

    def __reduce__(self):
        return self.answer


def change_torch(content, rng):
    """Change an object in a PyTorch file, and write it in the new or the old format."""
    import torch

    state = torch.load(io.BytesIO(content), weights_only=True)
    name = list(state)[rng.integers(len(state))]
    objects = [
        lambda x: _Calls(os.system, "true"),
        lambda x: _Calls(eval, "1"),
        lambda x: _Calls(bytearray, 1 << 40),
        lambda x: x[..., None],
        lambda x: x.reshape(-1)[:-1],
        lambda x: x.to(torch.int64),
        lambda x: x.to(torch.complex64),
        lambda x: x.to(torch.bfloat16),
        lambda x: x.to_sparse(),
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
        lambda x: x * float("nan"),
        lambda x: torch.zeros(1).expand(1 << 33),
        lambda x: torch.zeros(1).expand(*[1] * 40),
        lambda x: x.to("meta"),
        lambda x: "text",
        lambda x: {"more": x},
    ]
    others = [lambda: [], lambda: 3, lambda: {}, lambda: {1: 2}, lambda: None]
    changed = {**state, name: objects[rng.integers(len(objects))](state[name])}
    if rng.random() < 0.1:
        changed = others[rng.integers(len(others))]()
    packed = io.BytesIO()
    torch.save(changed, packed, _use_new_zipfile_serialization=bool(rng.integers(2)))
    return packed.getvalue()


def change_dictionary(content, rng):
    """Repeat a line, remove its tab, or change its number."""
    lines = content.decode().split("\n")
    i = rng.integers(len(lines) - 1)
    token, _, number = lines[i].partition("\t")
    other = [token, number, f"{token}\t-1", f"{token}\t{'9' * 5000}", "", f"\t{number}", "\t\t"]
    lines[i] = [*other, f"{token}\t\u0663", f"{token} {number}", lines[i - 1]][rng.integers(10)]
    return "\n".join(lines).encode()


# Functions that write good files, and functions that load them.


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        write: Takes a folder, writes good files there and returns the path of the one to mutate.
        load: Takes that path, loads it with the package, and raises if a result is wrong.
        mutators: Functions from content and random generator to content.
    """

    write: Callable
    load: Callable
    mutators: list


def _tiny():
    from tests.conftest import make_arrays, make_config

    return make_config(), make_arrays(make_config())


def _write_preset(folder):
    from tests.conftest import write_preset

    write_preset(folder, *_tiny())
    (folder / "README.md").write_text("# tiny\n\nA biLM.\n")
    return folder


def _check_bilm(bilm):
    config, arrays = _tiny()
    assert bilm.config.n_layers < 99 and bilm.arrays.keys() >= {"char_embed"}
    assert all(np.isfinite(array).all() for array in bilm.arrays.values())
    if bilm.config == config:
        assert {n: a.shape for n, a in bilm.arrays.items()} == {
            n: a.shape for n, a in arrays.items()
        }


def _load_preset(path):
    from keras_elmo.presets import Preset

    preset = Preset(path)
    preset.check_sums()
    _check_bilm(preset.read())


def _load_bilm(path):
    from keras_elmo.formats.bilm_hdf5 import read_bilm

    _check_bilm(read_bilm(path.parent / "options.json", path.parent / "weights.hdf5"))


def _write_zip(folder):
    files = _write_preset(folder / "files")
    with zipfile.ZipFile(folder / "preset.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(files.iterdir()):
            archive.write(path, path.name)
    return folder / "preset.zip"


def _write_tar(folder, compression="gz"):
    files = _write_preset(folder / "files")
    with tarfile.open(folder / "preset.tar.gz", f"w:{compression}") as archive:
        for path in sorted(files.iterdir()):
            archive.add(path, path.name)
    return folder / "preset.tar.gz"


def _write_token_cache(folder):
    (folder / "tokens.txt").write_text("a\né\nfox\n")
    rows = np.arange(18, dtype="float32").reshape(3, 6)
    write_arrays(folder / "tokens.hdf5", {"embedding": rows})
    return folder / "tokens.hdf5"


def _load_token_cache(path):
    from keras_elmo.embed.token_table import read_token_cache

    words = read_token_cache(path.parent / "tokens.txt", path.parent / "tokens.hdf5", 6)
    assert words.rows.shape == (3, 6) and np.isfinite(words.rows).all()


def _write_layers(folder, names=("0", "1", "2", "3")):
    layers = {name: np.ones((3, i, 8), "float32") for i, name in enumerate(names)}
    write_arrays(folder / "layers.hdf5", layers)
    return folder / "layers.hdf5"


def _load_layers(path):
    from keras_elmo import LayerDataset

    dataset = LayerDataset(path)
    for batch in (dataset[i] for i in range(len(dataset))):
        assert np.isfinite(batch["layers"]).all() and batch["layers"].ndim == 4


class _Variable:
    """The part of a Keras variable that loading needs."""

    def __init__(self, name, value):
        self.name, self.shape, self.value = name, value.shape, value

    def assign(self, value):
        assert value.shape == self.shape and np.isfinite(value).all()


def _variables():
    kernel, step = np.ones((2, 3), "float32"), np.array(7)
    return {"model": [_Variable("kernel", kernel)], "optimizer": [_Variable("step", step)]}


def _write_checkpoint(folder):
    arrays = {
        f"{group}/0000_{variable.name}": variable.value
        for group, variables in _variables().items()
        for variable in variables
    }
    facts = {"facts": json.dumps({"step": 7})}
    write_arrays(folder / "checkpoint.hdf5", arrays, facts)
    return folder / "checkpoint.hdf5"


def _load_checkpoint(path):
    from keras_elmo.pretraining.checkpoint import load_checkpoint

    assert isinstance(load_checkpoint(path, _variables()), dict)


def _write_language_model(folder):
    config, _ = _tiny()
    _write_preset(folder)
    (folder / "vocab.txt").write_text("<S>\n</S>\n<UNK>\né\nfox\n")
    shape = (5, config.projection_dim)
    softmax = {"softmax/W": np.ones(shape, "float32"), "softmax/b": np.ones(5, "float32")}
    write_arrays(folder / "softmax.hdf5", softmax)
    return folder


def _load_language_model(path):
    from keras_elmo.pretraining.language_model_files import read_language_model

    model, vocabulary = read_language_model(path.parent)
    assert len(vocabulary) == 5 and model.softmax_kernel.shape[0] == 5


def _write_variables(folder):
    """Write a TensorFlow checkpoint of one block and one shard."""
    from tests import foreign_files

    config, arrays = _tiny()
    (folder / "options.json").write_text(json.dumps(config.to_options()))
    foreign_files.write_checkpoint(folder / "model", foreign_files.checkpoint_variables(arrays))
    return folder


def _write_archive(folder, is_zip):
    from tests import foreign_files

    config, arrays = _tiny()
    (folder / "options.json").write_text(json.dumps(config.to_options()))
    foreign_files.write_allennlp(folder, foreign_files.allennlp_tensors(arrays), is_zip)
    return folder / "weights.th"


def _write_dictionaries(folder):
    from tests import foreign_files

    config, arrays = _tiny()
    arrays["char_embed"] = arrays["char_embed"][:9]
    foreign_files.write_many_langs(folder, config, arrays, "abc", ["fox", "é"], 5)
    (folder / "config.json").write_text('{"config_path": "cnn.json"}')
    return folder


def _load_source(path):
    from keras_elmo.presets import Preset

    preset = Preset(path.parent)
    bilm = preset.read()
    assert all(np.isfinite(array).all() for array in bilm.arrays.values())
    preset.read_mixes()
    preset.read_softmax()


KINDS = {
    "options": Kind(
        lambda folder: _write_preset(folder) / "options.json",
        _load_bilm,
        [change_json, change_json, change_json, spoil_text, *BYTES],
    ),
    "weights": Kind(
        lambda folder: _write_preset(folder) / "weights.hdf5",
        _load_bilm,
        [edit_hdf5] * 8 + BYTES,
    ),
    "zip": Kind(_write_zip, _load_preset, [repack_zip] * 6 + BYTES),
    "tar": Kind(_write_tar, _load_preset, [repack_tar] * 6 + BYTES),
    "tar.bz2": Kind(lambda folder: _write_tar(folder, "bz2"), _load_preset, BYTES),
    "tar.xz": Kind(lambda folder: _write_tar(folder, "xz"), _load_preset, BYTES),
    "token cache": Kind(_write_token_cache, _load_token_cache, [edit_hdf5] * 8 + BYTES),
    "token vocabulary": Kind(
        lambda folder: _write_token_cache(folder).with_name("tokens.txt"),
        _load_token_cache,
        [spoil_text, *BYTES],
    ),
    "layers": Kind(_write_layers, _load_layers, [edit_hdf5] * 8 + BYTES),
    "layers of sentences": Kind(
        lambda folder: _write_layers(folder, (" ", "a", "a b", "1/2 c d")),
        _load_layers,
        [edit_hdf5] * 8 + BYTES,
    ),
    "checkpoint": Kind(_write_checkpoint, _load_checkpoint, [edit_hdf5] * 8 + BYTES),
    "softmax": Kind(
        lambda folder: _write_language_model(folder) / "softmax.hdf5",
        _load_language_model,
        [edit_hdf5] * 8 + BYTES,
    ),
    "vocabulary": Kind(
        lambda folder: _write_language_model(folder) / "vocab.txt",
        _load_language_model,
        [spoil_text, *BYTES],
    ),
    "index": Kind(
        lambda folder: _write_variables(folder) / "model.index",
        _load_source,
        [change_index] * 12 + BYTES,
    ),
    "shard": Kind(
        lambda folder: _write_variables(folder) / "model.data-00000-of-00001", _load_source, BYTES
    ),
    "torch": Kind(
        lambda folder: _write_archive(folder, is_zip=True),
        _load_source,
        [change_torch] * 12 + BYTES,
    ),
    "old torch": Kind(lambda folder: _write_archive(folder, is_zip=False), _load_source, BYTES),
    "dictionary": Kind(
        lambda folder: _write_dictionaries(folder) / "char.dic",
        _load_source,
        [change_dictionary] * 6 + [spoil_text, *BYTES],
    ),
    "words": Kind(
        lambda folder: _write_dictionaries(folder) / "word.dic",
        _load_source,
        [change_dictionary] * 6 + [spoil_text, *BYTES],
    ),
    "architecture": Kind(
        lambda folder: _write_dictionaries(folder) / "cnn.json",
        _load_source,
        [change_json, change_json, change_json, spoil_text, *BYTES],
    ),
}


def attack(kind, seed, count, tell=lambda *_: None) -> list[str]:
    """Load mutants of a kind of file, and return a text for each failure."""
    wrong = []
    kind_name, kind = kind, KINDS[kind]
    with tempfile.TemporaryDirectory() as folder:
        path = kind.write(pathlib.Path(folder))
        content = path.read_bytes()
        kind.load(path)
        # Use every mutator in turn.
        for number, mutate in zip(range(count), itertools.cycle(kind.mutators)):
            rng = np.random.default_rng([seed, number])
            path.write_bytes(mutate(content, rng))
            what = f"{kind_name} {number} {mutate.__name__}"
            tell(what)
            start = time.monotonic()
            try:
                kind.load(path)
            except (ValueError, OSError) as error:
                if path.name not in str(error):
                    wrong.append(f"{what}: without the file's name: {error}")
            except BaseException as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                wrong.append(
                    f"{what}: {type(error).__name__}: {error} in {where.name}, line {where.lineno}"
                )
            if time.monotonic() - start > SECONDS / 2:
                wrong.append(f"{what}: took {time.monotonic() - start:.0f} s")
    return wrong


def main(seed, count, *kinds):
    """Load mutants in this process, with limited memory. Print the failures as JSON, last."""
    import warnings

    import keras_elmo.pretraining.train  # noqa: F401  with Keras and its backend, before the limit

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
