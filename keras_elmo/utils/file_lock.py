"""A file lock. The operating system frees it when its process ends."""

import contextlib
import errno
import os
import pathlib
from collections.abc import Iterator

_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP)


@contextlib.contextmanager
def locked(path: str | os.PathLike, purpose: str) -> Iterator[None]:
    """Lock a file. Two processes, or two threads, cannot lock the same file at once.

    The file contains the process id and is removed at the end. On Windows, and on a file system
    without locks, nothing is locked. The ``purpose`` says in errors what the owner does, as in
    ``"writes out.hdf5"``.

    Raises:
        OSError: If another process or thread has locked the file. The error names the process.
    """
    path = pathlib.Path(path)
    handle = _acquire(path, purpose)
    try:
        os.ftruncate(handle, 0)
        with contextlib.suppress(OSError):  # the disk may be full; others read the id in errors
            os.write(handle, str(os.getpid()).encode())
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows cannot remove an open file
            path.unlink()
        _lock(handle, False)  # closing would leave it with processes forked in the meantime
        os.close(handle)


def _acquire(path: pathlib.Path, purpose: str) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(handle, True)
        except OSError as error:
            os.close(handle)
            if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
                raise
            raise OSError(
                f"Process {_owner(path)} {purpose} already. Received: its lock {path}. Wait for "
                "it, or stop it first"
            ) from None
        # The previous owner may have removed the file after we opened it and before we locked it.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        os.close(handle)


def _owner(path: pathlib.Path) -> str:
    """Return the process id in a lock file, which the owner writes after locking."""
    with contextlib.suppress(OSError):
        return path.read_text("ascii", "replace") or "of unknown id"
    return "of unknown id"


def _lock(handle: int, is_locked: bool) -> None:
    """Lock or free a file. On Windows, and on a file system without locks, do nothing."""
    with contextlib.suppress(ImportError):  # Windows has no fcntl
        import fcntl

        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB if is_locked else fcntl.LOCK_UN)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
