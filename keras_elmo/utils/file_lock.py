"""One process at a time: a lock that ends with the process that holds it."""

import contextlib
import errno
import os
import pathlib
import time

# File systems that have no locks.
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextlib.contextmanager
def locked(path, purpose):
    """Hold the lock of a file, which the operating system frees if the process dies.

    On a file system without locks nothing is locked.

    Args:
        path: Path of the lock, which holds the process id and is removed at the end.
        purpose: What the lock is for, as in ``"writes out.hdf5"``.

    Raises:
        OSError: If another process, or another thread of this one, holds it; the error
            names the process.

    Example:

    >>> with locked("out.hdf5.lock", "writes out.hdf5"):
    ...     pathlib.Path("out.hdf5.lock").exists()
    True
    """
    path = pathlib.Path(path)
    handle = _acquire(path, purpose)
    try:
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows removes no open file, and needs not to
            path.unlink()
        _unlock(handle)
        os.close(handle)


def _acquire(path, purpose):
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(handle)
        except OSError as error:
            os.close(handle)
            if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
                raise
            raise OSError(
                f"Process {_holder(path)} {purpose} already. Received: its lock {path}. Wait for "
                "it, or stop it first"
            ) from None
        # Whoever held it may have removed the file between our two steps.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        os.close(handle)


def _holder(path):
    """Return the process id in a lock, which its holder writes in its first moment."""
    for _ in range(20):
        with contextlib.suppress(OSError):
            if text := path.read_text("ascii", "replace"):
                return text
        time.sleep(0.01)
    return "of unknown id"


def _lock(handle):
    try:
        import fcntl
    except ImportError:
        import msvcrt

        os.lseek(handle, 1 << 20, os.SEEK_SET)  # beyond the process id, which others read
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        os.lseek(handle, 0, os.SEEK_SET)
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise


def _unlock(handle):
    """Free the lock, which a process that was forked meanwhile would hold on to."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_UN)
