import io
import pathlib

import h5py
import numpy as np
import pytest

from keras_elmo.checkpoints.files import read_hdf5, read_options, replacing, write_hdf5

ARRAYS = {"a": np.arange(3.0), "b/c": np.ones((2, 1), "float32"), "scalar": np.float32(2)}


def test_hdf5_round_trip(tmp_path):
    path = tmp_path / "w.hdf5"
    write_hdf5(path, ARRAYS)
    for source in (path, str(path), io.BytesIO(path.read_bytes())):
        found = read_hdf5(source, "w.hdf5")
        assert found.keys() == ARRAYS.keys()
        for name, array in ARRAYS.items():
            np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("keep", [0, 5, 0.5, 0.97])
def test_truncated_hdf5(tmp_path, keep):
    path = tmp_path / "w.hdf5"
    write_hdf5(path, {"a": np.random.rand(1000)})
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if keep < 1 else keep])
    with pytest.raises(OSError, match="Weight file w.hdf5 is damaged or not an hdf5 file .* again"):
        read_hdf5(path, "w.hdf5")


def test_not_hdf5(tmp_path):
    path = tmp_path / "w.hdf5"
    path.write_text("<html>404</html>")
    with pytest.raises(OSError, match="damaged or not an hdf5 file"):
        read_hdf5(path, "w.hdf5")


def test_strings_come_back_as_arrays(tmp_path):
    """So that the check of types can name them; nothing is unpickled."""
    path = tmp_path / "w.hdf5"
    with h5py.File(path, "w") as file:
        file["text"] = "code"
    assert read_hdf5(path, "w.hdf5")["text"].dtype.kind != "f"


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="Weight file gone.hdf5 does not exist"):
        read_hdf5(tmp_path / "gone.hdf5", "gone.hdf5")
    with pytest.raises(FileNotFoundError, match="Options file gone.json does not exist"):
        read_options(tmp_path / "gone.json", "gone.json")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00"])
def test_bad_json(tmp_path, content):
    path = tmp_path / "options.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="Options file o.json is not JSON"):
        read_options(path, "o.json")


def test_replacing_is_all_or_nothing(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("old")
    with pytest.raises(RuntimeError, match="halfway"):
        with replacing(first, second) as temporary:
            temporary[0].write_text("new")
            raise RuntimeError("halfway")
    assert first.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["first"]

    with replacing(first, second) as temporary:
        for path in temporary:
            assert isinstance(path, pathlib.Path) and path.parent == tmp_path
            path.write_text("new")
    assert first.read_text() == second.read_text() == "new"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["first", "second"]
