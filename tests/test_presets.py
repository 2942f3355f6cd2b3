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
from keras_elmo.presets import Preset
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
def test_bundled_are_found_inside_the_package_or_beside_it(tmp_path, monkeypatch, place):
    (tmp_path / place / "elmo_tiny").mkdir(parents=True)
    (tmp_path / place / "elmo_tiny" / "options.json").touch()
    (tmp_path / place / "tagger").mkdir()
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


def test_paths_in_the_home_folder(tmp_path, monkeypatch, tiny_preset):
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(tiny_preset, tmp_path / "elmo")
    layer = ElmoLayer.from_hdf5("~/elmo/options.json", "~/elmo/weights.hdf5")
    again = ElmoLayer.from_preset("~/elmo", options="~/elmo/options.json")
    assert layer.fingerprint() == again.fingerprint()
    presets.convert("~/elmo", "~/converted")
    layer.save_to_preset("~/saved")
    assert Preset("~/saved").read().fingerprint() == Preset("~/converted").read().fingerprint()


def test_presets_that_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("elmo_mini_en", "allennlp_small_en", "hf://ada/tiny", "", None, {"a": 1}):
        assert presets.absolute_preset(name) == name
    for path in ("a/b.txt", pathlib.Path("elmo_mini_en"), "./c"):
        assert presets.absolute_preset(path) == str(tmp_path / path)


# Directories and archives.

NAMES = [  # of options and weights in published models
    ("elmo_2x10_options.json", "elmo_2x10_weights.hdf5"),
    ("elmo_options.json", "elmo_weights_PubMed_only.hdf5"),
    ("options.json", "model.hdf5"),
    ("options.json", "mimic_wiki.hdf5"),
    ("options_file", "weights_file"),
]


@pytest.mark.parametrize("names", NAMES, ids=lambda names: names[1])
@pytest.mark.parametrize("pack", [unpacked, zipped, tarred])
def test_names_in_published_models(tmp_path, files, expected, names, pack):
    members = {names[0]: files["options.json"], names[1]: files["weights.hdf5"]}
    members |= {"softmax.hdf5": b"not the weights", "vocab.txt": b"", "README": b""}
    members |= {"._options.json": b"resource fork", "__MACOSX/._options.json": b"resource fork"}
    path = pack(tmp_path / "elmo.bin", {f"elmo/{n}": content for n, content in members.items()})
    np.testing.assert_array_equal(output(path), expected)
    assert Preset(path).files == [path] or pack is unpacked


def test_weights_hdf5_goes_before_model_hdf5(tmp_path, files, expected):
    more = {**files, "model.hdf5": b"", "other.hdf5": b""}
    np.testing.assert_array_equal(output(tarred(tmp_path / "elmo.tgz", more)), expected)
    more = {"options.json": files["options.json"], "a.hdf5": b"", "b.hdf5": b""}
    with pytest.raises(ValueError, match=r"any other \*.hdf5 .* Received: \['a.hdf5', 'b.hdf5'\]"):
        ElmoLayer.from_preset(tarred(tmp_path / "two.tgz", more))


@pytest.mark.parametrize("mode", ["zip", "w:", "w:bz2", "w:xz"])
def test_archives(tmp_path, files, expected, mode):
    """The name of an archive can be any."""
    path = tmp_path / "elmo"
    path = zipped(path, files) if mode == "zip" else tarred(path, files, mode)
    np.testing.assert_array_equal(output(path), expected)
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


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_unpacked_files_last_as_long_as_the_preset(tmp_path, files, monkeypatch, pack):
    temporary_files = tmp_path / "temporary"
    temporary_files.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary_files))
    path = pack(tmp_path / "elmo.zip", files)
    preset = Preset(path)
    path.unlink()
    assert len(list(temporary_files.iterdir())) == 1
    assert preset.read().config == make_config()
    del preset
    assert not list(temporary_files.iterdir())
    with pytest.raises(ValueError, match="exactly one file named"):
        Preset(zipped(tmp_path / "elmo.zip", {})).read()
    assert not list(temporary_files.iterdir())


@pytest.mark.parametrize("folder", ["elmo", "elmo/model"])
def test_a_folder_in_a_folder(tmp_path, files, expected, folder):
    inner = unpacked(tmp_path / folder, files)
    (tmp_path / "README.md").write_text("a model card")
    for other in ("__MACOSX", ".git", "notes"):
        (tmp_path / other).mkdir()
        (tmp_path / other / "weights.hdf5" if other != "notes" else inner / "notes.txt").touch()
    (inner / "tokenizer.json").write_text('{"name": "toktok"}')
    np.testing.assert_array_equal(output(tmp_path), expected)
    assert Preset(tmp_path).read_tokenizer() == "toktok"
    second = inner.with_name("second")
    shutil.copytree(inner, second)
    with pytest.raises(ValueError, match=f"one model. Received: {inner}, {second}. Pass one of"):
        ElmoLayer.from_preset(tmp_path)


def test_the_card_is_the_one_of_the_outermost_folder(tmp_path, files):
    cards = {"a/README.md": b"inner", "README.md": "outer\xff".encode("latin-1")}
    path = zipped(tmp_path / "elmo.zip", {**files, **cards})
    assert Preset(path).card() == "outer\ufffd"


# Files that do not fit.


def test_ambiguous_and_incomplete(tmp_path, files):
    path = zipped(tmp_path / "two.zip", {**files, "other/weights.hdf5": b""})
    with pytest.raises(ValueError, match=r"one file named \*weights.hdf5, .*. Received: \['other/"):
        ElmoLayer.from_preset(path)
    with pytest.raises(ValueError, match=r"one file named \*options.json .*Received: no files"):
        ElmoLayer.from_preset(zipped(tmp_path / "none.zip", {}))


def test_one_of_the_two_files(tiny_preset):
    with pytest.raises(OSError, match="options.json cannot be unpacked .* pass the directory of i"):
        ElmoLayer.from_preset(tiny_preset / "options.json")
    with pytest.raises(OSError, match="Weight file .* does not exist, or is not a file"):
        ElmoLayer.from_hdf5(tiny_preset / "options.json", tiny_preset)


def test_options_of_another_model(tmp_path):
    arrays = make_arrays(make_config())
    options, weights = write_preset(tmp_path, make_config(lstm_dim=11), arrays)
    with pytest.raises(ValueError, match=r"LSTMCell/B' has shape \(40,\), expected \(44,\)"):
        ElmoLayer.from_preset(tmp_path)
    with pytest.raises(ValueError, match="weights.hdf5 does not fit the options .*options.json, n"):
        ElmoLayer.from_hdf5(options, weights)
    options.write_text(json.dumps(make_config().to_options()))
    with pytest.raises(FileNotFoundError, match="gone.hdf5 does not exist"):
        ElmoLayer.from_hdf5(options, tmp_path / "gone.hdf5")


def test_errors_name_the_file_in_an_archive(tmp_path, files):
    path = zipped(tmp_path / "p.zip", {**files, "weights.hdf5": b"<html>"})
    with pytest.raises(OSError, match=r"Weight file .*p.zip/weights.hdf5 is damaged"):
        Preset(path).read()
    path = zipped(tmp_path / "p.zip", {"a/options.json": b"{", "weights.hdf5": b""})
    with pytest.raises(ValueError, match=r"Options file .*p.zip/a/options.json is not JSON"):
        Preset(path).read()


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
    assert Preset(tmp_path / "korean").read_tokenizer() == "kiwi"


def test_a_released_model_is_downloaded(monkeypatch, tmp_path):
    shutil.copytree(GOLDEN / "a_standard", tmp_path / "cached")
    monkeypatch.setattr(presets, "download", lambda name: tmp_path / "cached")
    released = Preset("allennlp_original_en")
    assert released.path == tmp_path / "cached" and released.read_tokenizer() == "penn"
    assert Preset("seqvec_uniref50_protein").read_tokenizer() == "letters"
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
