import contextlib
import gzip
import io
import json
import os
import pathlib
import shutil
import tarfile
import zipfile

import numpy as np
import pytest

from keras_elmo import ElmoLayer, WordTokenizer, presets, released_models
from keras_elmo.formats.hdf5 import read_arrays
from keras_elmo.presets import open_preset
from tests.conftest import (
    GOLDEN,
    SENTENCES,
    make_arrays,
    make_config,
    numpy,
    tokenize,
    write_preset,
)


def unpacked(path, files):
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def zipped(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def tarred(path, files, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def files(tiny_preset):
    return {p.name: p.read_bytes() for p in tiny_preset.iterdir()}


@pytest.fixture
def expected(tiny_preset):
    layer = ElmoLayer.from_hdf5(tiny_preset / "options.json", tiny_preset / "weights.hdf5")
    return numpy(layer(tokenize(SENTENCES, 13)))


def output(preset):
    return numpy(ElmoLayer.from_preset(preset)(tokenize(SENTENCES, 13)))


# Names and paths.


def test_bundled_names(tmp_path, monkeypatch, expected, files):
    """A path is never a bundled name."""
    monkeypatch.chdir(tmp_path)
    unpacked(tmp_path / "bundled", files)
    (tmp_path / "elmo_tiny").mkdir()
    monkeypatch.setattr(presets, "bundled", lambda: {"elmo_tiny": tmp_path / "bundled"})
    np.testing.assert_array_equal(output("elmo_tiny"), expected)
    for path in (pathlib.Path("./elmo_tiny"), "./elmo_tiny", tmp_path / "elmo_tiny"):
        with pytest.raises(ValueError, match="one file named"):
            ElmoLayer.from_preset(path)


@pytest.mark.parametrize("place", ["package/weights", "weights"])
def test_bundled_are_found_inside_the_package_or_next_to_it(tmp_path, monkeypatch, place):
    unpacked(tmp_path / place, {"elmo_tiny/options.json": b"", "tagger/README.md": b""})
    module = tmp_path / "package" / "released_models.py"
    monkeypatch.setattr(released_models, "__file__", str(module))
    assert released_models.bundled() == {"elmo_tiny": tmp_path / place / "elmo_tiny"}


@pytest.mark.parametrize(
    "preset, message",
    [
        (None, "from_preset expects .* Received: preset=None"),
        ("", "from_preset expects .* Received: preset=''"),
        ("xyz", "preset='xyz'. keras-elmo presets lists all names"),
        ("ELMO_MINI_EN", "Similar names: elmo_mini_en.*keras-elmo presets lists all names"),
        ("weights/elmo_minni_en", "Similar names: elmo_mini_en"),
        ("https://tfhub.dev/google/elmo/3", "path of a directory, .* preset='https://tfhub.dev/go"),
    ],
)
def test_not_a_preset(preset, message):
    with pytest.raises(ValueError, match=message):
        ElmoLayer.from_preset(preset)


def test_paths_in_the_home_folder(tmp_path, monkeypatch, files):
    monkeypatch.setenv("HOME", str(tmp_path))
    unpacked(tmp_path / "elmo", files)
    layer = ElmoLayer.from_hdf5("~/elmo/options.json", "~/elmo/weights.hdf5")
    layer.save_to_preset("~/saved")
    presets.convert("~/elmo", "~/converted")
    for path in ("~/elmo", "~/saved", "~/converted"):
        again = open_preset(path, options="~/elmo/options.json").read()
        assert again.fingerprint() == layer.fingerprint()


def test_presets_that_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("elmo_mini_en", "allennlp_small_en", "hf://ada/tiny", None, {"a": 1}):
        assert presets.absolute_preset(name) == name
    for path in ("a/b.txt", pathlib.Path("elmo_mini_en"), "./c"):
        assert presets.absolute_preset(path) == str(tmp_path / path)


# Directories and archives.

NAMES = [  # of options and weights in published models, and of a file to leave out
    ("elmo_2x10_options.json", "elmo_2x10_weights.hdf5", "model.hdf5"),
    ("elmo_options.json", "elmo_weights_PubMed_only.hdf5", "softmax.hdf5"),
    ("options.json", "model.hdf5", "other.hdf5"),
    ("options_file", "weights_file", "._options.json"),
]


@pytest.mark.parametrize("options, weights, other", NAMES)
def test_names_in_published_models(tmp_path, files, expected, options, weights, other):
    members = {options: files["options.json"], weights: files["weights.hdf5"], other: b"other"}
    np.testing.assert_array_equal(output(unpacked(tmp_path, members)), expected)


def test_files_that_are_missing_or_ambiguous(tmp_path, files):
    folder = unpacked(tmp_path / "elmo", {f"inner/{name}": x for name, x in files.items()})
    with pytest.raises(ValueError, match=r"named \*options.json .*: no files. Pass the folder of"):
        ElmoLayer.from_preset(folder)
    folder = unpacked(folder, {"options.json": files["options.json"], "a.hdf5": b"", "b.hdf5": b""})
    with pytest.raises(ValueError, match=r"any other \*.hdf5 .* Received: \['a.hdf5', 'b.hdf5'\]"):
        ElmoLayer.from_preset(folder)
    with pytest.raises(OSError, match="options.json cannot be unpacked .* pass the directory of i"):
        ElmoLayer.from_preset(folder / "options.json")
    with pytest.raises(FileNotFoundError, match="Weight file .* does not exist, or is not a file"):
        ElmoLayer.from_hdf5(folder / "options.json", folder / "gone.hdf5")


@pytest.mark.parametrize("mode", ["zip", "w:", "w:gz", "w:bz2", "w:xz"])
def test_archives(tmp_path, files, expected, mode):
    """The name of an archive can be any, and its files can be in a folder."""
    cards = {"README.md": "outer\xff".encode("latin-1"), "elmo/README.md": b"inner"}
    members = cards | {f"elmo/{name}": content for name, content in files.items()}
    members["__MACOSX/._options.json"] = b"resource fork"
    path = tmp_path / "elmo"
    path = zipped(path, members) if mode == "zip" else tarred(path, members, mode)
    np.testing.assert_array_equal(output(path), expected)
    assert path in open_preset(path).files
    assert open_preset(path).card == "outer\ufffd"
    half = path.read_bytes()[: path.stat().st_size // 2]
    for other in (half, b"not an archive", gzip.compress(files["weights.hdf5"])):
        path.write_bytes(other)
        with pytest.raises(OSError, match="elmo cannot be unpacked .* Is it a .zip, .* Fetch it"):
            ElmoLayer.from_preset(path)


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_members_that_point_outside(tmp_path, files, pack):
    """They are refused, or unpacked inside."""
    path = pack(tmp_path / "evil", {**files, "../../outside.txt": b"{}"})
    with contextlib.suppress(OSError):
        ElmoLayer.from_preset(path)
    assert not list(tmp_path.parent.rglob("outside.txt"))


def test_unpacked_files_last_as_long_as_the_preset(tmp_path, files, monkeypatch):
    temporary_files = tmp_path / "temporary"
    temporary_files.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary_files))
    path = zipped(tmp_path / "elmo.zip", files)
    preset = open_preset(path)
    path.unlink()
    assert len(list(temporary_files.iterdir())) == 1
    assert preset.read().config == make_config()
    del preset
    assert not list(temporary_files.iterdir())
    # Errors name the archive.
    damaged = {"a/options.json": files["options.json"], "weights.hdf5": b"<html>"}
    with pytest.raises(OSError, match=r"Weight file .*elmo.zip/weights.hdf5 is damaged"):
        open_preset(zipped(path, damaged)).read()
    with pytest.raises(ValueError, match=r"Options file .*elmo.zip/a/options.json is not JSON"):
        open_preset(zipped(path, {**damaged, "a/options.json": b"{"})).read()
    assert not list(temporary_files.iterdir())


# What a preset contains.


def test_architecture_only(tiny_preset, tmp_path):
    options = make_config().to_options()
    (tmp_path / "options.json").write_text(json.dumps(options))
    layer = ElmoLayer.from_preset(tmp_path, load_weights=False, output="top")
    assert layer.built and layer.config == make_config() and layer.output_kind == "top"
    assert layer.fingerprint() != ElmoLayer.from_preset(tiny_preset).fingerprint()
    (tmp_path / "options.json").unlink()
    assert ElmoLayer.from_preset(tmp_path, load_weights=False, options=options).built
    (tmp_path / "weights.hdf5").write_bytes((tiny_preset / "weights.hdf5").read_bytes())
    layer.load_preset(tmp_path, options=options)
    assert layer.fingerprint() == ElmoLayer.from_preset(tiny_preset).fingerprint()
    with pytest.raises(ValueError, match=r"options as a dict.* Received: BiLMConfig.*to_options"):
        ElmoLayer.from_preset(tiny_preset, options=make_config())


def test_facts_of_the_bundled_presets():
    for source in (ElmoLayer, ElmoLayer(make_config())):
        facts = source.presets["elmo_mini_en"]
        assert facts["description"].startswith("The smaller English biLM (bidirectional language")
        assert (facts["layers"], facts["width"], facts["max_characters"]) == (3, 256, 50)
        assert os.path.isdir(facts["path"])
    # keras-elmo presets cuts them.
    assert len({facts["description"][:70] for facts in ElmoLayer.presets.values()}) == 3


def test_presets_record_their_tokenizer(tmp_path):
    shutil.copytree(GOLDEN / "a_standard", tmp_path / "unknown")
    with pytest.raises(ValueError, match=r"its tokenizer in tokenizer.json. Received: .*unknown"):
        WordTokenizer.from_preset(tmp_path / "unknown")
    presets.convert(tmp_path / "unknown", tmp_path / "converted")
    assert not (tmp_path / "converted" / "tokenizer.json").exists()
    (tmp_path / "unknown" / "tokenizer.json").write_text('{"name": "pe')
    with pytest.raises(ValueError, match="Tokenizer file .*unknown/tokenizer.json is not JSON"):
        presets.convert(tmp_path / "unknown", tmp_path / "again")
    presets.convert("elmo_small_ko", tmp_path / "korean")
    assert open_preset(tmp_path / "korean").tokenizer == "kiwi"


def test_a_released_model_is_downloaded(monkeypatch, tmp_path):
    shutil.copytree(GOLDEN / "a_standard", tmp_path / "cached")
    monkeypatch.setattr(presets, "download", lambda name: tmp_path / "cached")
    released = open_preset("allennlp_original_en")
    assert released.folder.path == tmp_path / "cached" and released.tokenizer == "penn"
    assert open_preset("seqvec_uniref50_protein").tokenizer == "letters"
    with pytest.raises(ValueError, match=r"Received: .*, trained on UD-style tokens \(UDPipe\)"):
        WordTokenizer.from_preset("manylangs_uk")


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_converted_weights_are_float32(tmp_path, dtype):
    config = make_config()
    arrays = {name: x.astype(dtype) for name, x in make_arrays(config).items()}
    write_preset(tmp_path / "source", config, arrays)
    (tmp_path / "source" / "vocab.txt").write_text("<S>\n</S>\n<UNK>\n")
    presets.convert(tmp_path / "source", tmp_path / "out")
    assert (tmp_path / "out" / "vocab.txt").read_text() == "<S>\n</S>\n<UNK>\n"
    for name, array in read_arrays(tmp_path / "out" / "weights.hdf5").items():
        assert array.dtype == "float32", name
        np.testing.assert_array_equal(array, arrays[name].astype("float32"))
