import os
import pathlib
import signal

import pytest

from keras_elmo.utils.files import (
    atomic_write,
    deferred_signals,
    read_options,
    read_vocabulary_lines,
    write_files,
)


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="Options file .*gone.json does not exist"):
        read_options(tmp_path / "gone.json")
    with pytest.raises(IsADirectoryError, match="Options file .* is a directory"):
        read_options(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="Options file .*pipe is a device or a pipe"):
        read_options(tmp_path / "pipe")


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "Expecting value"),
        (b"{", "Expecting"),
        (b"\xff\xfe\x00", "codec can't decode"),
        ("{}".encode("utf-16"), "codec can't decode"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b"-Infinity", "-Infinity is not a JSON number"),
        (b'{"a": {"b": 1, "b": 1}}', "an object has the key 'b' twice"),
        (b"9" * 20, "a whole number has 20 digits"),
    ],
)
def test_bad_json(tmp_path, content, reason):
    (tmp_path / "o.json").write_bytes(content)
    with pytest.raises(ValueError, match=f"Options file .*o.json is not JSON: .*{reason}"):
        read_options(tmp_path / "o.json")


def test_json_that_is_too_deep_or_too_long(tmp_path):
    path = tmp_path / "o.json"
    path.write_bytes(b"[" * 100_000)
    with pytest.raises(ValueError, match="Options file .*o.json .* nested too deeply"):
        read_options(path)
    os.truncate(path, (1 << 27) + 1)
    with pytest.raises(ValueError, match="Options file .*o.json is too large. Expected: at most"):
        read_options(path)


def test_lines(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("a\né\r\n\nb".encode())
    assert read_vocabulary_lines(path) == ["a", "é\r", "", "b"]
    for content in (b"\xef\xbb\xbfa\r\nb\r\n\r\nc", b"a\r\nb\r\n\r\nc\n", b"a\nb\r\n\r\nc\r\n"):
        path.write_bytes(content)
        assert read_vocabulary_lines(path) == ["a", "b", "", "c"]
    path.write_bytes(b"a\nb\nc\xff\n")
    with pytest.raises(ValueError, match="Vocabulary .*vocab.txt must be .* UTF-8. .* line 3 "):
        read_vocabulary_lines(path)


def test_atomic_write_is_all_or_nothing(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("old")
    with pytest.raises(RuntimeError, match="halfway"):
        with atomic_write(first, second) as temporary:
            temporary[0].write_text("new")
            raise RuntimeError("halfway")
    assert first.read_text() == "old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["first"]

    with atomic_write(first, second) as temporary:
        for path in temporary:
            assert isinstance(path, pathlib.Path) and path.parent == tmp_path
            path.write_text("new")
    assert first.read_text() == second.read_text() == "new"
    os.mkfifo(pipe := tmp_path / "pipe")
    for path in (pipe, tmp_path):
        with pytest.raises(OSError, match="Expected a file to write. Received: .*something else"):
            with atomic_write(path):
                raise AssertionError
    pipe.unlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["first", "second"]
    with pytest.raises(FileNotFoundError, match="There is no folder .*gone for out.txt$"):
        with atomic_write(tmp_path / "gone" / "out.txt"):
            raise AssertionError


def test_atomic_write_keeps_links(tmp_path):
    (tmp_path / "disk").mkdir()
    for name in ("old", "new"):  # the file of the second link does not exist yet
        link = tmp_path / name
        link.symlink_to(tmp_path / "disk" / name)
        if name == "old":
            link.write_text("old")
        with atomic_write(link) as (temporary,):
            temporary.write_text("written")
        assert link.is_symlink() and (tmp_path / "disk" / name).read_text() == "written"
    assert sorted(p.name for p in (tmp_path / "disk").iterdir()) == ["new", "old"]


def test_atomic_write_restores_what_it_replaced(tmp_path, monkeypatch):
    """The third file cannot be replaced: the first, which is old, and the second, which is new."""
    paths = [tmp_path / name for name in ("old", "new", "last")]
    for path in (paths[0], paths[2]):
        path.write_text("old")
    replace = os.replace

    def fail(source, target):
        if target == paths[2]:
            raise PermissionError("another program has opened it")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail)
    for link in (os.link, lambda *_: os.stat("/no links")):  # with and without links
        monkeypatch.setattr(os, "link", link)
        with pytest.raises(PermissionError, match="another program"):
            with atomic_write(*paths) as temporary:
                for path in temporary:
                    path.write_text("new")
        assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
            "old": "old",
            "last": "old",
        }


def test_a_signal_does_not_part_files(tmp_path, monkeypatch):
    """It is handled when both files are replaced."""
    paths, replace = [tmp_path / "a", tmp_path / "b"], os.replace

    def replace_slowly(source, target):
        signal.raise_signal(signal.SIGINT)
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_slowly)
    with pytest.raises(KeyboardInterrupt):
        with atomic_write(*paths):
            pass
    assert sorted(tmp_path.iterdir()) == paths


def test_an_interrupt_does_not_lose_other_handlers(monkeypatch):
    """An exception of a restored handler comes after all handlers are restored and have run."""
    ran, set_handler = [], signal.signal
    handlers = {n: lambda n, _: ran.append(n) for n in (signal.SIGINT, signal.SIGTERM)}
    before = {number: set_handler(number, handler) for number, handler in handlers.items()}

    def interrupted(number, handler):
        set_handler(number, handler)
        if handler is handlers.get(number):
            raise KeyboardInterrupt

    try:
        monkeypatch.setattr(signal, "signal", interrupted)
        with pytest.raises(KeyboardInterrupt), deferred_signals():
            signal.raise_signal(signal.SIGTERM)
            assert ran == []
        assert ran == [signal.SIGTERM]
        assert {number: signal.getsignal(number) for number in handlers} == handlers
    finally:
        for number, handler in before.items():
            set_handler(number, handler)


def test_write_files(tmp_path):
    def fail(path):
        raise RuntimeError("halfway")

    folder = tmp_path / "new" / "folder"
    writers = {"a": lambda path: path.write_text("A"), "b": fail}
    with pytest.raises(RuntimeError, match="halfway"):
        write_files(folder, writers)
    assert not folder.exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(RuntimeError, match="halfway"):
        write_files(tmp_path / "empty", writers)
    assert (tmp_path / "empty").is_dir()
    write_files(folder, {**writers, "b": lambda path: path.write_text("B")})
    assert {p.name: p.read_text() for p in folder.iterdir()} == {"a": "A", "b": "B"}
    with pytest.raises(RuntimeError, match="halfway"):
        write_files(folder, {"a": None, "b": fail})
    assert (folder / "a").exists()
    write_files(folder, {"a": None, "c": None, "b": lambda path: path.write_text("new")})
    assert {p.name: p.read_text() for p in folder.iterdir()} == {"b": "new"}


@pytest.mark.parametrize(("umask", "mode"), [(0o002, 0o664), (0o077, 0o600)])
def test_atomic_write_respects_the_umask(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        with atomic_write(tmp_path / "file") as (temporary,):
            temporary.write_text("text")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode
