import json
import os
import zipfile

import numpy as np
import pytest

from keras_elmo import ElmoLayer, presets
from tests.conftest import SENTENCES, make_arrays, make_config, numpy, tokenize, write_preset


def zipped(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
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


def test_directory(tiny_preset, expected, tmp_path, files):
    np.testing.assert_array_equal(output(tiny_preset), expected)
    np.testing.assert_array_equal(output(str(tiny_preset)), expected)
    for name, content in files.items():
        (tmp_path / f"elmo_2x10_{name}").write_bytes(content)
    (tmp_path / "README.md").write_text("a model card")
    (tmp_path / "._options.json").write_text("resource fork")
    np.testing.assert_array_equal(output(tmp_path), expected)


@pytest.mark.parametrize("folder", ["", "elmo/", "elmo/model_"])
def test_zip(tmp_path, files, expected, folder):
    members = {folder + name: content for name, content in files.items()}
    members["__MACOSX/._options.json"] = b"resource fork"
    members["./"] = b""
    path = zipped(tmp_path / "elmo.zip", members)
    np.testing.assert_array_equal(output(path), expected)
    assert os.listdir(tmp_path) == ["elmo.zip"]


def test_bundled_names(tmp_path, monkeypatch, expected, files):
    (tmp_path / "elmo_tiny").mkdir()
    for name, content in files.items():
        (tmp_path / "elmo_tiny" / name).write_bytes(content)
    monkeypatch.setattr(presets, "bundled", lambda: {"elmo_tiny": tmp_path / "elmo_tiny"})
    np.testing.assert_array_equal(output("elmo_tiny"), expected)
    with pytest.raises(ValueError, match="Received: preset='elmo_huge'. Bundled are: elmo_tiny"):
        ElmoLayer.from_preset("elmo_huge")


@pytest.mark.parametrize("place", ["package/weights", "weights"])
def test_bundled_are_found_inside_the_package_or_beside_it(tmp_path, monkeypatch, place):
    (tmp_path / place / "elmo_tiny").mkdir(parents=True)
    (tmp_path / place / "README.md").write_text("not a preset")
    monkeypatch.setattr(presets, "__file__", str(tmp_path / "package" / "presets.py"))
    assert presets.bundled() == {"elmo_tiny": tmp_path / place / "elmo_tiny"}


@pytest.mark.parametrize("bad", [None, 3, ""])
def test_not_a_preset(bad):
    with pytest.raises(ValueError, match=f"from_preset expects .* Received: preset={bad!r}"):
        ElmoLayer.from_preset(bad)


def test_one_of_the_two_files(tiny_preset):
    for name in ("options.json", "weights.hdf5"):
        with pytest.raises(ValueError, match=f"one of its two files, .*{name}. Pass the directory"):
            ElmoLayer.from_preset(tiny_preset / name)
    with pytest.raises(ValueError, match="path of an options file. Received: a dict"):
        ElmoLayer.from_hdf5(make_config().to_options(), tiny_preset / "weights.hdf5")
    with pytest.raises(IsADirectoryError, match="Weight file .* is a directory"):
        ElmoLayer.from_hdf5(tiny_preset / "options.json", tiny_preset)


@pytest.mark.parametrize(
    "name", ["../options.json", "/options.json", "a/../../options.json", r"..\options.json", "C:/x"]
)
def test_zip_members_that_point_outside(tmp_path, files, name):
    path = zipped(tmp_path / "evil.zip", {**files, name: b"{}"})
    with pytest.raises(ValueError, match="has a member that points outside it. Received: "):
        ElmoLayer.from_preset(path)


def test_ambiguous_and_incomplete(tmp_path, files):
    path = zipped(tmp_path / "two.zip", {**files, "other/weights.hdf5": b""})
    with pytest.raises(ValueError, match=r"one file ending in 'weights.hdf5'. Received: \['other/"):
        ElmoLayer.from_preset(path)
    with pytest.raises(ValueError, match=r"one file ending in 'options.json'. Received: \[\]"):
        ElmoLayer.from_preset(zipped(tmp_path / "none.zip", {}))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"one file ending in 'options.json'. Received: \[\]"):
        ElmoLayer.from_preset(tmp_path / "empty")


def test_damaged_zip(tmp_path, files):
    path = zipped(tmp_path / "elmo.zip", files)
    content = bytearray(path.read_bytes())
    path.write_bytes(content[:-200])
    with pytest.raises(OSError, match="is damaged or not a zip file"):
        ElmoLayer.from_preset(path)
    content[5000:5100] = b"\xff" * 100
    path.write_bytes(content)
    with pytest.raises(OSError, match="is damaged or not a zip file|damaged or not an hdf5 file"):
        ElmoLayer.from_preset(path)
    path.write_text("not a zip")
    with pytest.raises(OSError, match="is damaged or not a zip file"):
        ElmoLayer.from_preset(path)


def test_options_of_another_model(tmp_path):
    arrays = make_arrays(make_config())
    options, weights = write_preset(tmp_path, make_config(lstm_dim=11), arrays)
    with pytest.raises(ValueError, match=r"LSTMCell/B' has shape \(40,\), expected \(44,\)"):
        ElmoLayer.from_preset(tmp_path)
    options.write_text(json.dumps({**make_config().to_options(), "colour": 1}))
    with pytest.raises(ValueError, match=r"unknown keys \['colour'\]"):
        ElmoLayer.from_hdf5(options, weights)
    with pytest.raises(FileNotFoundError, match="gone.hdf5 does not exist"):
        ElmoLayer.from_hdf5(options, tmp_path / "gone.hdf5")
