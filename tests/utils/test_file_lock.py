import errno
import os
import subprocess
import sys

import pytest

from keras_elmo.utils import file_lock
from keras_elmo.utils.file_lock import locked
from tests.embed.test_threads import run_all


def test_a_lock_of_another_process(tmp_path):
    """It ends with its process, although the file stays."""
    lock = tmp_path / "lock"
    code = (  # The module alone: the package would import TensorFlow.
        "import runpy, sys, time\n"
        "with runpy.run_path(sys.argv[1])['locked'](sys.argv[2], 'writes'):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", code, file_lock.__file__, lock]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "held\n"
        message = f"Process {other.pid} writes a file already. Received: its lock .* Wait for"
        with pytest.raises(OSError, match=message), locked(lock, "writes a file"):
            pass
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    assert lock.exists()
    with locked(lock, "writes"):
        pass
    assert not lock.exists()


def test_the_lock_under_contention(tmp_path):
    """Only one thread at a time holds the lock, although each removes the lock file."""
    inside, most, refused = [], [], []

    def work(_):
        for _ in range(200):
            try:
                with locked(tmp_path / "lock", "writes"):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
            except OSError:
                refused.append(1)

    assert not run_all(work, range(4))
    assert set(most) == {1} and len(most) + len(refused) == 800


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refuse(handle, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path / "lock", "writes"):
        assert (tmp_path / "lock").read_text() == str(os.getpid())
    assert not (tmp_path / "lock").exists()
