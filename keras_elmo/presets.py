"""Presets: a bundled name, a directory or a zip with one options and one weight file."""

import io
import os
import pathlib
import zipfile

from keras_elmo.checkpoints.files import read_hdf5, read_options

_ENDINGS = ("options.json", "weights.hdf5")


def bundled() -> dict:
    """Return the directories of the presets that come with the package, by name."""
    package = pathlib.Path(__file__).parent
    # Inside the package once installed, beside it in a checkout.
    for folder in (package / "weights", package.parent / "weights"):
        if folder.is_dir():
            return {d.name: d for d in sorted(folder.iterdir()) if d.is_dir()}
    return {}


def read_preset(preset) -> tuple[dict, dict, str]:
    """Read a preset.

    Args:
        preset: Name of a bundled preset, or path of a directory or .zip which holds
            one file ending in ``options.json`` and one in ``weights.hdf5``. Nothing
            is unpacked to disk.

    Returns:
        The options, the tensors by name, and the name of the weight file for errors.

    Raises:
        ValueError: If there is no such preset, if it does not hold exactly those two
            files, or if a member of the zip points outside it.
        OSError: If a file is damaged.
    """
    if not isinstance(preset, str | os.PathLike) or not str(preset):
        raise ValueError(
            "from_preset expects the name of a bundled preset or the path of a directory or .zip. "
            f"Received: preset={preset!r}"
        )
    path = bundled().get(str(preset), pathlib.Path(preset))
    if path.name.endswith(_ENDINGS) and path.is_file():
        raise ValueError(
            "from_preset expects a directory or .zip. Received: one of its two files, "
            f"{path}. Pass the directory, or both files to from_hdf5"
        )
    if path.is_dir():
        options, weights = _pick([p.name for p in path.iterdir()], path)
        origin = str(path / weights)
        return (
            read_options(path / options, str(path / options)),
            read_hdf5(path / weights, origin),
            origin,
        )
    if path.is_file():
        return _read_zip(path)
    raise ValueError(
        "from_preset expects the name of a bundled preset or the path of a directory or .zip. "
        f"Received: preset={str(preset)!r}. Bundled are: {', '.join(bundled()) or 'none'}"
    )


def _read_zip(path):
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            for name in names:
                member = pathlib.PurePosixPath(name.replace("\\", "/"))
                if member.is_absolute() or ".." in member.parts or ":" in name:
                    raise ValueError(
                        f"Preset {path} has a member that points outside it. Received: {name!r}"
                    )
            options, weights = _pick(names, path)
            origin = f"{path}!{weights}"
            return (
                read_options(io.BytesIO(archive.read(options)), f"{path}!{options}"),
                read_hdf5(io.BytesIO(archive.read(weights)), origin),
                origin,
            )
    except (zipfile.BadZipFile, EOFError) as error:
        raise OSError(f"Preset {path} is damaged or not a zip file ({error})") from error
    except (RuntimeError, NotImplementedError) as error:  # a password, a foreign compression
        raise ValueError(f"Preset {path} cannot be unpacked: {error}") from error


def _pick(names, path):
    """Return the one options and the one weight file among the names."""
    picked = []
    for ending in _ENDINGS:
        # macOS leaves resource forks, ._name, beside or below the files.
        files = [name for name in names if not name.rpartition("/")[2].startswith("._")]
        candidates = [name for name in files if name.endswith(ending)]
        if len(candidates) != 1:
            raise ValueError(
                f"Preset {path} must hold exactly one file ending in '{ending}'. "
                f"Received: {sorted(candidates)}"
            )
        picked += candidates
    return picked
