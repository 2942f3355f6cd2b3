"""The files of a source, whatever holds them: a directory, an archive, or a checkpoint's prefix."""

import pathlib

from keras_elmo.formats.archives import Folder, open_archive, read_member


class Files:
    """Named files that belong together; nothing is unpacked to disk.

    Args:
        path: A directory, .zip or .tar.gz; TF-Hub's cache with one module; or the prefix of
            a checkpoint of TensorFlow, as ``model.ckpt-400``, or its ``.index`` file.

    Attributes:
        path: As given.
        names: Of the files, with folders in front.
        prefix: The name of the checkpoint, if a prefix was given, else None.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.prefix = None
        if prefix := checkpoint_prefix(self.path):
            self.prefix = prefix.name
            self._archive = Folder(prefix.parent)
        else:
            self._archive = open_archive(_inside_cache(self.path))
        # macOS leaves resource forks, ._name, beside or below the files.
        self.names = [name for name in self._archive.names if not base(name).startswith("._")]

    def origin(self, name) -> str:
        """Return what errors call a file."""
        return self._archive.origin(name)

    def file(self, name, most=None):
        """Return a file to read: a path, or bytes in memory, at most so many."""
        return self._archive.file(name, most)

    def read(self, name, most) -> bytes:
        """Read a small file whole, at most so many bytes."""
        return read_member(self._archive, name, most)

    def blocks(self, name):
        """Yield the bytes of a file in blocks."""
        return self._archive.blocks(name)

    def size(self, name) -> int:
        """Return the bytes of a file."""
        return self._archive.size(name)

    def read_ranges(self, name, ranges):
        """Yield the bytes of parts of a file, given as (offset, size) by rising offset."""
        return self._archive.read_ranges(name, ranges)

    def named(self, *bases) -> list[str]:
        """Return the files of these names, in whatever folder."""
        return [name for name in self.names if base(name) in bases]

    def ending(self, end) -> list[str]:
        """Return the files whose names end so."""
        return [name for name in self.names if name.endswith(end)]

    def pick(self, expected, *choices) -> str:
        """Return the one file of the first choice that has any.

        Raises:
            ValueError: If there is none, or more than one.
        """
        candidates: list[str] = next((names for names in choices if names), [])
        if len(candidates) != 1:
            raise ValueError(
                f"Preset {self.path} must hold exactly one file named {expected}. "
                f"Received: {sorted(candidates)[:20]}"
            )
        return candidates[0]


def checkpoint_prefix(path):
    """Return the prefix that a path names, if it does: without ``.index``; else None."""
    if path.name.endswith(".index") and path.is_file():
        return path.with_name(path.name.removesuffix(".index"))
    is_prefix = not path.exists() and path.with_name(path.name + ".index").is_file()
    return path if path.name and is_prefix else None


def _inside_cache(path):
    """Return the only SavedModel below a directory that has no files of a model; else the path."""
    if path.is_dir():
        inside = [p.parent for p in path.glob("*/saved_model.pb")]
        others = [p for p in path.iterdir() if p.is_file() and not p.name.endswith(".txt")]
        if len(inside) == 1 and not others:
            return inside[0]
    return path


def base(name) -> str:
    """Return the last part of a name."""
    return name.rpartition("/")[2]
