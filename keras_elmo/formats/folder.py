"""The files of a preset, all in one folder."""

import dataclasses
import os
import pathlib
import re
import shutil
import tarfile
import tempfile
import weakref
import zipfile

from keras_elmo.utils.files import PathLike, check_file, local_path

_CHECKPOINT_FILE = re.compile(r"(.+)\.(index|meta|data-\d{5}-of-\d{5})")
# Files that a folder with a model contains.
_MODEL_FILE = re.compile(
    r".*(options\.json|\.hdf5|\.index|\.pb|\.th|\.pkl)|options_file|weights_file", re.IGNORECASE
)


@dataclasses.dataclass(frozen=True)
class PresetFile(os.PathLike[str]):
    """A file of a preset. Open it as a path, and write it into errors as text.

    ``name`` is its name in the preset, including folders. ``text`` is its path, or
    ``archive!name``.
    """

    name: str
    path: pathlib.Path
    text: str

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return self.text


class Folder:
    """The files of a preset.

    An archive is unpacked to a temporary folder, which is removed when this object is no longer
    used. Set the environment variable TMPDIR to choose the disk.

    Args:
        path: str or path. A directory, a .zip or .tar archive, or a TensorFlow checkpoint, given
            as its prefix ``model.ckpt-400`` or one of its files. A directory whose only model is
            one or two levels deeper is that model.

    ``names`` are the files, including folders. ``checkpoint`` is the name of the checkpoint, if
    ``path`` is one.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = local_path(path)
        prefix = checkpoint_prefix(self.path)
        self.checkpoint = prefix.name if prefix else None
        self._is_archive = prefix is None and not self.path.is_dir()
        if self._is_archive:
            self._directory = pathlib.Path(tempfile.mkdtemp(prefix="keras-elmo-"))
            weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
            _unpack(self.path, self._directory)
        else:
            self._directory = prefix.parent if prefix else _model_folder(self.path)
        patterns = ["**/*"] if self._is_archive else ["*", "variables/*", "fta/*"]
        # macOS adds files ._name to folders and archives.
        self.names = sorted(
            file.relative_to(self._directory).as_posix()
            for pattern in patterns
            for file in self._directory.glob(pattern)
            if not file.is_dir() and not file.name.startswith("._")
        )

    @property
    def files(self) -> list[PresetFile]:
        """All files."""
        return [self.file(name) for name in self.names]

    def file(self, name: str) -> PresetFile:
        """Return the file of this name."""
        path = self._directory / name
        return PresetFile(name, path, f"{self.path}!{name}" if self._is_archive else str(path))

    def named(self, base: str) -> list[str]:
        """Return the files with this name, in any folder."""
        return [name for name in self.names if base_name(name).lower() == base.lower()]

    def ending(self, end: str) -> list[str]:
        """Return the files whose names have this ending."""
        return [name for name in self.names if name.lower().endswith(end)]

    def pick(self, expected: str, *choices: list[str]) -> PresetFile:
        """Return the file of the first choice that has files, which must be one.

        ``expected`` describes it in the ``ValueError``. Without choices it is the name of the file.
        """
        choices = choices or (self.named(expected),)
        candidates: list[str] = next((names for names in choices if names), [])
        if len(candidates) != 1:
            raise self.refusal(expected, candidates)
        return self.file(candidates[0])

    def refusal(self, expected: str, candidates: list[str]) -> ValueError:
        """Return the error for no candidate, or several, where one file is expected."""
        return ValueError(
            f"Preset {self.path} must contain exactly one file named {expected}. "
            f"Received: {sorted(candidates or self.names)[:20] or 'no files'}"
        )


def _unpack(path: pathlib.Path, directory: pathlib.Path) -> None:
    """Unpack a .zip or .tar archive, compressed or not. The name of the archive can be any."""
    check_file(path, f"Archive {path}")
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as packed:
                packed.extractall(directory)
        else:
            with tarfile.open(path) as archive:
                archive.extractall(directory, filter="data")
    except Exception as error:  # damaged files make the libraries raise errors of many types
        reason = " ".join(str(error).split())[:300]
        raise OSError(
            f"Archive {path} cannot be unpacked to {directory} ({reason}). Is it a .zip, .tar, "
            ".tar.gz, .tar.bz2 or .tar.xz file? Fetch it again, or pass the directory of its "
            "files. Set TMPDIR to unpack it to another disk"
        ) from error


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


def base_name(name: str) -> str:
    """Return the last part of a name with ``/``."""
    return name.rpartition("/")[2]
