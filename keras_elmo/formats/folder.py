"""The files of a preset, all in one folder."""

import pathlib
import shutil
import tempfile
import weakref

from keras_elmo.formats.archives import unpack
from keras_elmo.utils.files import PathLike


class Folder:
    """The files of a preset.

    An archive is unpacked to a temporary folder, which is removed when this object is no longer
    used. Set the environment variable TMPDIR to choose the disk.

    Args:
        path: str or path. A directory, a .zip or .tar.gz, or a TensorFlow checkpoint, given as
            its prefix ``model.ckpt-400`` or its file ``model.ckpt-400.index``. A cache directory
            of TF-Hub with one module is that module.

    Attributes:
        path: path. The argument.
        names: list of str. Names of the files, including folders.
        checkpoint: str or None. Name of the checkpoint, if ``path`` is a checkpoint.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = pathlib.Path(path)
        prefix = checkpoint_prefix(self.path)
        self.checkpoint = prefix.name if prefix else None
        self._is_archive = prefix is None and not self.path.is_dir()
        if self._is_archive:
            self._directory = pathlib.Path(tempfile.mkdtemp(prefix="keras-elmo-"))
            remove = weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
            try:
                unpack(self.path, self._directory)
            except BaseException:
                remove()
                raise
        else:
            self._directory = prefix.parent if prefix else _cached_module(self.path)
        patterns = ["**/*"] if self._is_archive else ["*", "variables/*"]
        # macOS adds files ._name to folders and archives.
        self.names = sorted(
            file.relative_to(self._directory).as_posix()
            for pattern in patterns
            for file in self._directory.glob(pattern)
            if not file.is_dir() and not file.name.startswith("._")
        )

    def file(self, name: str) -> pathlib.Path:
        """Return the path of a file."""
        return self._directory / name

    def shown(self, name: str) -> str:
        """Return the name of a file for errors: its path, or ``archive!name``."""
        return f"{self.path}!{name}" if self._is_archive else str(self.file(name))

    def named(self, *bases: str) -> list[str]:
        """Return the files with one of these names, in any folder."""
        return [name for name in self.names if base_name(name) in bases]

    def ending(self, end: str) -> list[str]:
        """Return the files whose names have this ending."""
        return [name for name in self.names if name.endswith(end)]

    def pick(self, expected: str, *choices: list[str]) -> str:
        """Return the file of the first choice that has files, which must be one.

        Raises:
            ValueError: If there is no file, or more than one. ``expected`` describes the file.
        """
        candidates: list[str] = next((names for names in choices if names), [])
        if len(candidates) != 1:
            raise ValueError(
                f"Preset {self.path} must contain exactly one file named {expected}. "
                f"Received: {sorted(candidates)[:20]}"
            )
        return candidates[0]


def checkpoint_prefix(path: pathlib.Path) -> pathlib.Path | None:
    """Return the prefix of the TensorFlow checkpoint at a path, or None."""
    if path.name.endswith(".index") and path.is_file():
        return path.with_name(path.name.removesuffix(".index"))
    is_prefix = not path.exists() and path.with_name(path.name + ".index").is_file()
    return path if path.name and is_prefix else None


def _cached_module(path: pathlib.Path) -> pathlib.Path:
    """Return the only SavedModel in a directory without model files, else the directory."""
    modules = [p.parent for p in path.glob("*/saved_model.pb")]
    others = [p for p in path.iterdir() if p.is_file() and not p.name.endswith(".txt")]
    return modules[0] if len(modules) == 1 and not others else path


def base_name(name: str) -> str:
    """Return the last part of a name with ``/``."""
    return name.rpartition("/")[2]
