import os
import subprocess
import sys

import pytest

from keras_elmo.utils.files import (
    atomic_write,
    check_new_directory,
    check_output,
    locked,
    read_options,
    read_vocabulary_lines,
    write_files,
)


def test_what_is_not_a_file(tmp_path):
    for path in (tmp_path / "gone.json", tmp_path):
        with pytest.raises(FileNotFoundError, match=f"Options file {path} does not exist, or is"):
            read_options(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "Expecting"),
        ("{}".encode("utf-16"), "codec can't decode"),
        (b"[" * 100_000, "recursion"),
    ],
)
def test_bad_json(tmp_path, content, reason):
    (tmp_path / "o.json").write_bytes(content)
    with pytest.raises(ValueError, match=f"Options file .*o.json is not JSON: .*{reason}"):
        read_options(tmp_path / "o.json")


def test_json_of_another_kind(tmp_path):
    (tmp_path / "o.json").write_text("[]")
    with pytest.raises(ValueError, match="o.json must contain a dict in JSON. Received: list"):
        read_options(tmp_path / "o.json")


def test_lines(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("a\né\r\n\nb".encode())
    assert read_vocabulary_lines(path) == ["a", "é\r", "", "b"]
    mixed = b"a\r\nb\r\n\nc"
    for content in (b"\xef\xbb\xbfa\r\nb\r\n\r\nc", mixed, b"a\r\nb\r\n\r\nc\r\n", b"a\nb\n\nc"):
        path.write_bytes(content)
        assert read_vocabulary_lines(path) == ["a", "b", "", "c"]
    path.write_bytes(b"a\nb\nc\xff\n")
    with pytest.raises(ValueError, match="Vocabulary .*vocab.txt must be .* UTF-8. .* line 3 "):
        read_vocabulary_lines(path)


def test_atomic_write(tmp_path):
    path = tmp_path / "file"
    for text in ("old", "new"):
        with atomic_write(path) as temporary:
            temporary.write_text(text)
    with pytest.raises(RuntimeError, match="halfway"):
        with atomic_write(path) as temporary:
            temporary.write_text("newer")
            raise RuntimeError("halfway")
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_atomic_write_keeps_links(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "file")
    for text in ("first", "second"):  # the target of the link does not exist yet, and does
        with atomic_write(tmp_path / "link") as temporary:
            temporary.write_text(text)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "disk" / "file").read_text() == text


def test_atomic_write_respects_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "file") as temporary:
            temporary.write_text("text")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_lock_of_another_process(tmp_path):
    """The lock ends with its process, although the file stays."""
    path = tmp_path / "lock"
    code = (
        "import sys, time, filelock\n"
        "with filelock.FileLock(sys.argv[1]):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, path]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(
            OSError, match="process writes a.txt already. Received: its lock .*/lock"
        ):
            with locked(path, "writes a.txt"):
                pass
    finally:
        other.kill()
        other.communicate()
    for _ in range(2):
        with locked(path, "writes a.txt"):
            pass


def test_write_files(tmp_path):
    def fail(path):
        raise RuntimeError("halfway")

    folder = tmp_path / "new" / "folder"
    write_files(folder, {name: lambda path: path.write_text("old") for name in "ab"})
    with pytest.raises(RuntimeError, match="halfway"):
        write_files(folder, {"a": lambda path: path.write_text("new"), "b": fail})
    assert {p.name: p.read_text() for p in folder.iterdir()} == {"a": "old", "b": "old"}


def test_outputs_that_are_refused(tmp_path):
    file, link = tmp_path / "file", tmp_path / "link"
    assert check_output(file, inputs=[file]) == file  # nothing is lost
    file.write_text("old")
    link.symlink_to(file)
    with pytest.raises(ValueError, match=r"Received: .*file, which exists. Pass overwrite=True"):
        check_output(file)
    assert check_output(link, overwrite=True) == link
    for path in (file, link):
        with pytest.raises(ValueError, match="which is also an input. Choose another path"):
            check_output(path, overwrite=True, inputs=[tmp_path / "gone", file])
    with pytest.raises(ValueError, match="which is not a file. Choose another path"):
        check_output(tmp_path, overwrite=True)
    with pytest.raises(ValueError, match="in the folder .*gone, which does not exist. Make"):
        check_output(tmp_path / "gone" / "file")


def test_new_directories(tmp_path):
    check_new_directory(tmp_path, "convert", "Choose another")
    check_new_directory(tmp_path / "gone", "convert", "Choose another")
    (tmp_path / "file").touch()
    for path, found in ((tmp_path, "contains files"), (tmp_path / "file", "is a file")):
        with pytest.raises(ValueError, match=f"convert expects .* which {found}. Choose another"):
            check_new_directory(path, "convert", "Choose another")
