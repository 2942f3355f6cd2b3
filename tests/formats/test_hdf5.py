import h5py
import numpy as np
import pytest

from keras_elmo.formats import checks
from keras_elmo.formats.hdf5 import Hdf5Reader, read_arrays, write_arrays
from tests.conftest import room_for
from tests.hostile import _bad_name, _cycle, _virtual

ARRAYS = {"a": np.arange(3.0), "b/c": np.ones((2, 1), "float32"), "scalar": np.float32(2)}


@pytest.mark.parametrize("filters", [{}, {"shuffle": True, "fletcher32": True}])
@pytest.mark.parametrize("compression", [None, "gzip", "lzf"])
def test_round_trip(tmp_path, compression, filters):
    path = tmp_path / "w.hdf5"
    arrays = {"a": np.random.rand(300, 400), "b/c": np.ones((2, 1), "float16")}
    write_arrays(path, arrays, {"facts": "é"}, compression=compression, **filters)
    for source in (path, str(path)):
        again = read_arrays(source)
        assert again.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(again[name], array)
            assert again[name].dtype == array.dtype
    with Hdf5Reader(path) as file:
        assert file.attribute("facts") == "é"
        assert file.names() == ["a", "b"] and file.names("b") == ["c"]
        assert file.declared("a").shape == (300, 400)
        assert file.read("b/c").tolist() == [[1], [1]]


@pytest.mark.parametrize("room", [0, 100, 5_000, 60_000, 150_000])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_full_disk(tmp_path, compression, room):
    """HDF5 would crash the process, now or at its end."""
    arrays = {str(i): np.random.rand(300) for i in range(100)}
    with room_for(room), pytest.raises(OSError, match="File too large"):
        write_arrays(tmp_path / "w", arrays, compression=compression)
    write_arrays(tmp_path / "w", arrays, compression=compression)
    assert read_arrays(tmp_path / "w").keys() == arrays.keys()


def test_scalars_and_empty_arrays(tmp_path):
    write_arrays(tmp_path / "w", {"scalar": np.float32(2), "empty": np.zeros((3, 0, 8))})
    again = read_arrays(tmp_path / "w")
    assert again["scalar"] == 2 and again["empty"].shape == (3, 0, 8)


@pytest.mark.parametrize("keep", [0, 5, 0.5, 0.97])
def test_truncated(tmp_path, keep):
    path = tmp_path / "w.hdf5"
    write_arrays(path, {"a": np.random.rand(1000)})
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if keep < 1 else keep])
    with pytest.raises(OSError, match="Weight file .*w.hdf5 is damaged or not an hdf5 .* again"):
        read_arrays(path)


def test_other_things_by_the_name(tmp_path):
    path = tmp_path / "w.hdf5"
    path.write_text("<html>404</html>")
    with pytest.raises(OSError, match="damaged or not an hdf5 file"):
        read_arrays(path)
    with pytest.raises(FileNotFoundError, match="Part .*gone.hdf5 does not exist"):
        Hdf5Reader(tmp_path / "gone.hdf5", kind="Part")
    with pytest.raises(OSError, match="Weight file .* is a directory"):
        read_arrays(tmp_path)
    with pytest.raises(OSError, match="Weight file /dev/zero is a directory, a device or a pipe"):
        read_arrays("/dev/zero")


def test_what_was_expected(tmp_path):
    write_arrays(tmp_path / "w", {"a": np.zeros(3), "b": np.zeros(3, int), "c": np.zeros(2)})
    texts = {"fits": "the options", "remedy": "Advice"}
    with pytest.raises(
        ValueError,
        match="Weight file .*w does not fit the options, nothing was loaded. Received: "
        r"'a' has shape \(3,\), expected \(4,\); 'b' must contain floats, found dtype int64; "
        r"'d' is missing, expected shape \(1,\); 'c' is not expected, found shape \(2,\). Advice",
    ):
        read_arrays(tmp_path / "w", {"a": (4,), "b": (3,), "d": (1,)}, **texts)
    with Hdf5Reader(tmp_path / "w") as file:
        assert file.read("b").tolist() == [0, 0, 0]
        with pytest.raises(ValueError, match="'b' must contain floats, found dtype int64"):
            file.read("b", kinds="f")
        with pytest.raises(ValueError, match="must contain 'z'. Received: a file without it"):
            file.read("z")
        with pytest.raises(ValueError, match="the attribute 'z', text or a number. Received: none"):
            file.attribute("z")
    with pytest.raises(ValueError, match="and 10 more"):
        read_arrays(tmp_path / "w", {str(i): (1,) for i in range(27)})


@pytest.mark.parametrize(
    "value, problem",
    [(np.nan, "NaN or infinite values"), (np.inf, "NaN or inf"), (-1e39, "values beyond float32")],
)
def test_values_are_finite_in_float32(tmp_path, value, problem):
    write_arrays(tmp_path / "w", {"a": np.array([3e38, value])})
    with pytest.raises(ValueError, match=f"Received: 'a' contains {problem}.*. Fetch"):
        read_arrays(tmp_path / "w")
    with Hdf5Reader(tmp_path / "w") as file:
        with pytest.raises(ValueError, match=f"'a' contains {problem}"):
            file.read("a")


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">f2"])
def test_arrays_are_native(tmp_path, dtype):
    write_arrays(tmp_path / "w", {"a": np.arange(3, dtype=dtype)})
    with Hdf5Reader(tmp_path / "w") as file:
        for array in (file.read("a"), file.read_again("a")):
            assert array.dtype == np.dtype(dtype[1:]) and array.dtype.isnative
            assert array.tolist() == [0, 1, 2]


def _empty_chunks(file, name, array):
    file.create_dataset(name, (100,), "f4", chunks=(10,))[:50] = 1


REFUSED = {
    "a virtual dataset": _virtual,
    "a dataset stored in another file": lambda f, n, a: f.create_dataset(
        n, (4,), "f4", external=[("gone.bin", 0, h5py.h5f.UNLIMITED)]
    ),
    "a named type": lambda f, n, a: f.__setitem__(n, np.dtype("f4")),
    "a dataset without a shape": lambda f, n, a: f.create_dataset(n, data=h5py.Empty("f4")),
    "a dataset that was never written": lambda f, n, a: f.create_dataset(n, (9,), "f4"),
    "a dataset that was never completely written": _empty_chunks,
    r"shape \(1000000, 1000000\) in 0 bytes": lambda f, n, a: f.create_dataset(
        n, (10**6, 10**6), "f4", chunks=(100, 100), compression="gzip"
    ),
    "chunks of 400000000 bytes": lambda f, n, a: f.create_dataset(
        n, (3,), "f4", maxshape=(None,), chunks=(10**8,)
    ),
}
LINKS = {
    "soft": lambda f, n, a: f.__setitem__(n, h5py.SoftLink("/a")),
    "external": lambda f, n, a: f.__setitem__(n, h5py.ExternalLink("x", "/x")),
}
OTHER_VALUES = {
    "compound": lambda f, n, a: f.create_dataset(n, data=np.zeros(2, [("a", "f4")])),
    "references": lambda f, n, a: f.create_dataset(n, (2,), h5py.ref_dtype),
    "arrays of any length": lambda f, n, a: f.create_dataset(n, (2,), h5py.vlen_dtype("f4")),
    "enumerated": lambda f, n, a: f.create_dataset(n, data=np.array([True])),
    "nested arrays": lambda f, n, a: f.create_dataset(n, (2,), np.dtype(("f4", (3,)))),
    "opaque": lambda f, n, a: f.create_dataset(n, data=np.zeros(2, "V4")),
}
CASES = [
    *REFUSED.items(),
    *(("a link", make) for make in LINKS.values()),
    *(("values other than numbers or text", make) for make in OTHER_VALUES.values()),
]


@pytest.mark.parametrize("problem, make", CASES, ids=[*REFUSED, *LINKS, *OTHER_VALUES])
def test_refused_by_name(tmp_path, problem, make):
    path = tmp_path / "odd.hdf5"
    with h5py.File(path, "w") as file:
        file["good"] = np.zeros(3)
        make(file, "odd", np.zeros(4))
    with pytest.raises(
        ValueError,
        match=f"odd.hdf5 must contain plain datasets, .*Received: {problem}.*, 'odd'. Fetch it",
    ):
        read_arrays(path)


def test_names(tmp_path):
    for make, message in (
        (_bad_name, r"must have names in UTF-8. Received: b'bad\\xff'"),
        (_cycle, "must not contain more than 100000 names, nested 16 deep"),
    ):
        with h5py.File(tmp_path / "w", "w") as file:
            make(file, "odd", np.zeros(4))
        with pytest.raises(ValueError, match=message):
            read_arrays(tmp_path / "w")


def test_a_file_that_unpacks_to_far_more_than_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "SLACK", 0)
    with h5py.File(tmp_path / "w", "w") as file:
        for i in range(3):
            file.create_dataset(str(i), data=np.zeros(10**6), compression="gzip")
    with pytest.raises(ValueError, match=r"shape \(1000000,\) in \d+ bytes of a file of"):
        read_arrays(tmp_path / "w")


def test_text(tmp_path):
    with h5py.File(tmp_path / "w", "w") as file:
        file["lines"] = np.array(["a b", "é", ""] * 50, h5py.string_dtype())
        file["fixed"] = np.array([b"ab", b"c"])
        file["one"] = "one"
        file["bad"] = np.array([b"\xff"], h5py.string_dtype("ascii"))
        file["numbers"] = np.zeros(3)
    with Hdf5Reader(tmp_path / "w") as file:
        assert file.read_strings("lines") == ["a b", "é", ""] * 50
        assert file.read_strings("fixed") == ["ab", "c"] and file.read_strings("one") == ["one"]
        with pytest.raises(OSError, match="w is damaged"):
            file.read_strings("bad")
        with pytest.raises(ValueError, match="a list of text in 'numbers'. Received: numbers"):
            file.read_strings("numbers")
        with pytest.raises(ValueError, match="'lines' must contain numbers, found dtype object"):
            file.read("lines")


def test_copy(tmp_path):
    write_arrays(tmp_path / "a", {"0": np.random.rand(3, 4)}, compression="gzip")
    with Hdf5Reader(tmp_path / "a") as file, h5py.File(tmp_path / "b", "w") as target:
        file.copy("0", target)
        with pytest.raises(ValueError, match="must contain '1'"):
            file.copy("1", target)
    assert read_arrays(tmp_path / "a")["0"].tolist() == read_arrays(tmp_path / "b")["0"].tolist()


def test_text_of_some_rows(tmp_path):
    lines = [str(i) for i in range(150)]
    with h5py.File(tmp_path / "w", "w") as file:
        file["lines"] = np.array(lines, h5py.string_dtype())
    with Hdf5Reader(tmp_path / "w") as file:
        assert file.read_strings("lines", 3, 70) == lines[3:70]
        assert file.read_strings("lines", 140, 999) == lines[140:]


def test_a_text_that_all_rows_refer_to(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "SLACK", 0)
    with h5py.File(tmp_path / "w", "w") as file:
        file["lines"] = np.array(["x" * 100_000, *["y"] * 599], h5py.string_dtype())
        place = file["lines"].id.get_offset()
    content = bytearray((tmp_path / "w").read_bytes())
    content[place : place + 16 * 600] = content[place : place + 16] * 600
    (tmp_path / "w").write_bytes(content)
    with Hdf5Reader(tmp_path / "w") as file:
        assert file.read_strings("lines", 300, 301) == ["x" * 100_000]
        with pytest.raises(ValueError, match="more text than the file has room for, 'lines'"):
            file.read_strings("lines")


def test_many_datasets_that_unpack_to_far_more_than_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "SLACK", 10**6)  # each dataset alone fits
    arrays = {str(i): np.zeros(250_000, "float32") for i in range(5)}
    write_arrays(tmp_path / "w", arrays, compression="gzip")
    with Hdf5Reader(tmp_path / "w") as file:
        assert not file.read("0").any()
    with pytest.raises(ValueError, match="5000000 bytes in a file of .* 'all datasets'"):
        read_arrays(tmp_path / "w")


def test_a_file_that_another_process_writes(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")  # Windows has none
    monkeypatch.delenv("HDF5_USE_FILE_LOCKING", raising=False)
    write_arrays(tmp_path / "w", {"a": np.zeros(3)})
    with open(tmp_path / "w", "rb") as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="Weight file .*w is being written by another process$"):
            read_arrays(tmp_path / "w")
