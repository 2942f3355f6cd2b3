import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from keras_elmo.utils import file_lock
from keras_elmo.utils.file_lock import locked


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
    with locked(lock, "writes"):
        assert lock.read_text() == str(os.getpid())
        with pytest.raises(OSError, match="writes already"), locked(lock, "writes"):
            pass


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refuse(handle, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path / "lock", "writes"), locked(tmp_path / "lock", "writes"):
        pass


def test_a_forked_process_does_not_keep_the_lock(tmp_path):
    pytest.importorskip("fcntl")
    with locked(tmp_path / "lock", "writes"):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    try:
        with locked(tmp_path / "lock", "writes"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
