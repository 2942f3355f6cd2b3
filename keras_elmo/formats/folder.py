"""The files of a preset, all in one folder."""

import os
import pathlib
import re
import shutil
import tarfile
import tempfile
import weakref
import zipfile

from keras_elmo.utils.files import PathLike, check_file, library_errors, local_path

_CHECKPOINT_FILE = re.compile(r"(.+)\.(index|meta|data-\d{5}-of-\d{5})")
# Files that a folder with a model contains.
_MODEL_FILE = re.compile(
    r".*(options\.json|\.hdf5|\.index|\.pb|\.th|\.pkl)|options_file|weights_file", re.IGNORECASE
)


class Folder:
    """The files of a preset.

    An archive is unpacked to a temporary folder, which is removed when this object is no longer
    used. Set the environment variable TMPDIR to choose the disk.

    Args:
        path: str or path. A directory, a .zip or .tar archive, or a TensorFlow checkpoint, given
            as its prefix ``model.ckpt-400`` or one of its files. A directory whose only model is
            one or two levels deeper is that model.

    ``files`` are the paths of all files. ``checkpoint`` is the prefix of the checkpoint, if
    ``path`` is one.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = local_path(path)
        self.checkpoint = checkpoint_prefix(self.path)
        patterns = ["*", "variables/*"]
        if self.checkpoint:
            self._directory = self.checkpoint.parent
        elif self.path.is_dir():
            self._directory = _model_folder(self.path)
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
                f"Received: {found[:20] or 'no files'}"
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


def checkpoint_prefix(path: pathlib.Path) -> pathlib.Path | None:
    """Return the prefix of the TensorFlow checkpoint at a path, or None."""
    found = _CHECKPOINT_FILE.fullmatch(path.name)
    if found and path.is_file():
        path = path.with_name(found[1])
    elif not path.name or path.exists():
        return None
    return path if path.with_name(path.name + ".index").is_file() else None


def _model_folder(path: pathlib.Path) -> pathlib.Path:
    """Return the first folder with files of a model: this one, or one up to two levels deeper."""
    for pattern in ("*", "*/*", "*/*/*"):
        folders = {
            file.parent
            for file in path.glob(pattern)
            if _MODEL_FILE.fullmatch(file.name)
            and not any(part.startswith((".", "__")) for part in file.relative_to(path).parts)
        }
        if len(folders) > 1:
            raise ValueError(
                f"Preset {path} must contain one model. Received: "
                f"{', '.join(sorted(map(str, folders))[:20])}. Pass one of these folders"
            )
        if folders:
            return folders.pop()
    return path
