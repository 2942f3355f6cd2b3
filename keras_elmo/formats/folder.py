"""The files of a preset, all in one folder."""

import os
import pathlib
import shutil
import tarfile
import tempfile
import weakref
import zipfile

from keras_elmo.utils.files import PathLike, check_file, library_errors, local_path


class Folder:
    """The files of a preset.

    An archive is unpacked to a temporary folder, which is removed when this object is no longer
    used. Set the environment variable TMPDIR to choose the disk.

    Args:
        path: str or path. A directory, a .zip or .tar archive, or a TensorFlow checkpoint, given
            as its prefix ``model.ckpt-400`` or its index file ``model.ckpt-400.index``.

    ``files`` contains the paths of all files. In an archive, it includes the files of all folders.
    Next to a checkpoint, it leaves out the weights of other models.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = local_path(path)
        index = checkpoint_index(self.path)
        patterns = ["*", "variables/*"]
        if index:
            self._directory = index.parent
        elif self.path.is_dir():
            self._directory = self.path
        else:
            temporary = tempfile.mkdtemp(prefix="keras-elmo-")
            weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)
            # Errors about a file then contain the name of the archive.
            self._directory = pathlib.Path(temporary, self.path.name)
            _unpack(self.path, self._directory)
            patterns = ["**/*"]
        # macOS adds files ._name to folders and archives.
        self.files = sorted(
            file
            for pattern in patterns
            for file in self._directory.glob(pattern)
            if not file.is_dir() and not file.name.startswith("._")
        )
        if index:
            others = ".index", ".hdf5"
            self.files = [x for x in self.files if x == index or x.suffix not in others]

    def named(self, name: str) -> list[pathlib.Path]:
        """Return the files with this name, in any folder."""
        return [file for file in self.files if file.name.lower() == name.lower()]

    def ending(self, end: str) -> list[pathlib.Path]:
        """Return the files whose names have this ending."""
        return [file for file in self.files if file.name.lower().endswith(end)]

    def pick(self, expected: str, *choices: list[pathlib.Path]) -> pathlib.Path:
        """Return the file of the first choice that has files, which must be one.

        ``expected`` describes it in the ``ValueError``. Without choices it is the name of the file.
        """
        choices = choices or (self.named(expected),)
        candidates: list[pathlib.Path] = next((files for files in choices if files), [])
        if len(candidates) != 1:
            found = [os.path.relpath(x, self._directory) for x in candidates or self.files]
            raise ValueError(
                f"Preset {self.path} must contain exactly one file named {expected}. "
                f"Received: {found[:20] or 'no files'}. Pass the folder of the files"
            )
        return candidates[0]


def _unpack(path: pathlib.Path, directory: pathlib.Path) -> None:
    """Unpack a .zip or .tar archive, compressed or not. The name of the archive can be any."""
    check_file(path, f"Archive {path}")
    advice = (
        "Is it a .zip, .tar, .tar.gz, .tar.bz2 or .tar.xz file? Fetch it again, or pass the "
        "directory of its files. Set TMPDIR to unpack it to another disk"
    )
    with library_errors(f"Archive {path} cannot be unpacked to {directory}", advice):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as packed:
                packed.extractall(directory)
        else:
            with tarfile.open(path) as archive:
                archive.extractall(directory, filter="data")


def checkpoint_index(path: pathlib.Path) -> pathlib.Path | None:
    """Return the index file of the TensorFlow checkpoint at a path, or None."""
    if path.name and not path.exists():
        path = path.with_name(f"{path.name}.index")
    return path if path.suffix == ".index" and path.is_file() else None
