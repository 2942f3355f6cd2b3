import h5py
import numpy as np
import pytest

from keras_elmo.formats.hdf5 import Hdf5Reader, read_arrays, write_arrays


@pytest.mark.parametrize("filters", [{}, {"compression": "gzip", "shuffle": True}])
def test_round_trip(tmp_path, filters):
    path = tmp_path / "w.hdf5"
    arrays = {"a": np.random.rand(300, 400), "b/c": np.ones((2, 1), int), "e": np.zeros((3, 0, 8))}
    write_arrays(path, arrays, **filters)
    with h5py.File(path, "a") as file:
        file.attrs["facts"] = "é"
    with Hdf5Reader(path) as file:
        assert file.attribute("facts") == "é"
        assert file.dataset_names() == ["a", "b/c", "e"]
        assert file.declared("a").shape == (300, 400)
        for name, array in arrays.items():
            found = file.read(name)
            np.testing.assert_array_equal(found, array)
            assert found.dtype == array.dtype
    assert read_arrays(path, kinds="fi").keys() == arrays.keys()


def test_damaged_and_missing_files(tmp_path):
    path = tmp_path / "w.hdf5"
    write_arrays(path, {"a": np.random.rand(1000)})
    content = path.read_bytes()
    for damaged in (b"", b"<html>404</html>", content[: len(content) // 2], content[:-100]):
        path.write_bytes(damaged)
        with pytest.raises(OSError, match="Weight file .*w.hdf5 is damaged or not an hdf5 .* aga"):
            read_arrays(path)
    with pytest.raises(FileNotFoundError, match="Part .*gone.hdf5 does not exist"):
        Hdf5Reader(tmp_path / "gone.hdf5", kind="Part")


def test_what_was_expected(tmp_path):
    write_arrays(tmp_path / "w", {"a": np.zeros(3), "b": np.zeros(3, int), "c": np.zeros(2)})
    with pytest.raises(
        ValueError,
        match="Weight file .*w does not fit, nothing was loaded. Received: "
        r"'a' has shape \(3,\), expected \(4,\); 'b' must contain floats, found dtype int64; "
        r"'d' is missing, expected shape \(1,\); 'c' is not expected, found shape \(2,\). Check",
    ):
        read_arrays(tmp_path / "w", {"a": (4,), "b": (3,), "d": (1,)})
    with Hdf5Reader(tmp_path / "w") as file:
        with pytest.raises(ValueError, match="must contain the dataset 'z'. Received: a file with"):
            file.declared("z")
        with pytest.raises(ValueError, match="text as its attribute 'z'. Received: None. Fetch"):
            file.attribute("z")
    with pytest.raises(ValueError, match="and 10 more"):
        read_arrays(tmp_path / "w", {str(i): (1,) for i in range(27)})


@pytest.mark.parametrize("value", [np.nan, np.inf, -1e39])
def test_values_are_finite_in_float32(tmp_path, value):
    write_arrays(tmp_path / "w", {"a": np.array([3e38, value])})
    with pytest.raises(ValueError, match="'a' contains NaN, infinity, or values beyond float32. C"):
        read_arrays(tmp_path / "w")


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">f2"])
def test_arrays_are_native(tmp_path, dtype):
    write_arrays(tmp_path / "w", {"a": np.arange(3, dtype=dtype)})
    with Hdf5Reader(tmp_path / "w") as file:
        array = file.read("a")
    assert array.dtype == np.dtype(dtype[1:]) and array.dtype.isnative
    assert array.tolist() == [0, 1, 2]


def test_a_file_that_was_never_completely_written(tmp_path):
    """HDF5 would read zeros, of any size."""
    with h5py.File(tmp_path / "w", "w") as file:
        file.create_dataset("plain", (10**6, 10**6), "f4")
        file.create_dataset("chunked", (10**6, 10**6), "f4", chunks=(100, 100))
    with Hdf5Reader(tmp_path / "w") as file:
        for name in ("plain", "chunked"):
            with pytest.raises(OSError, match=f"w is damaged: '{name}' is not stored. Fetch"):
                file.declared(name)


def test_text(tmp_path):
    lines = [str(i) for i in range(149)] + ["é"]
    with h5py.File(tmp_path / "w", "w") as file:
        file["lines"] = np.array(lines, h5py.string_dtype())
        file["fixed"] = np.array([b"ab", b"c"])
        file["bad"] = np.array([b"\xff"], h5py.string_dtype("ascii"))
        file["numbers"] = np.zeros(3)
    with Hdf5Reader(tmp_path / "w") as file:
        assert file.read_strings("lines") == lines
        assert file.read_strings("fixed") == ["ab", "c"]
        with pytest.raises(OSError, match="w is damaged"):
            file.read_strings("bad")
        with pytest.raises(ValueError, match="a list of text in 'numbers'. Received: numbers"):
            file.read_strings("numbers")
    with pytest.raises(ValueError, match="'lines' must contain numbers, found dtype object"):
        read_arrays(tmp_path / "w", kinds="fiu")
