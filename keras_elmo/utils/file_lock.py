"""A file lock. The operating system frees it when its process ends."""

import contextlib
import os
from collections.abc import Iterator


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
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise OSError(
                f"Process {file.read()} {purpose} already. Received: its lock {path}. Wait for "
                "it, or stop it first"
            ) from None
        except (ImportError, OSError):  # Windows, or a file system without locks
            pass
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
