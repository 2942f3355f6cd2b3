"""A file lock. The operating system frees it when its process ends."""

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import TextIO

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def locked(path: str | os.PathLike, purpose: str) -> Iterator[None]:
    """Lock a file. Two processes, or two threads, cannot lock the same file at once.

    The file contains the process id, and stays. On Windows, and on a file system without locks,
    nothing is locked. The ``purpose`` says in errors what the owner does, as in
    ``"writes out.hdf5"``.

    Raises:
        OSError: If another process or thread has locked the file. The error names the process.
    """
    with open(path, "a+") as file:
        try:
            _lock(file, True)
        except (BlockingIOError, PermissionError):
            file.seek(0)
            raise OSError(
                f"Process {file.read()} {purpose} already. Received: its lock {path}. Wait for "
                "it, or stop it first"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield
        finally:
            _lock(file, False)  # closing would leave it with processes forked in the meantime


def _lock(file: TextIO, is_locked: bool) -> None:
    """Lock or free a file. On Windows, and on a file system without locks, do nothing."""
    with contextlib.suppress(ImportError):  # Windows has no fcntl
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB if is_locked else fcntl.LOCK_UN)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
