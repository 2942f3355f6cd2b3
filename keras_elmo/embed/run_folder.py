"""The folder of a run that can be interrupted and resumed: its settings, checked."""

import json
import pathlib
import shutil

from keras_elmo.utils.files import atomic_write

_SETTINGS = "_settings.json"  # Readers of Parquet skip files whose names begin with "_".


def claim_folder(folder: pathlib.Path, settings: dict, resume: bool) -> None:
    """Make the folder of a run, or check that this run can continue the one in it.

    ``settings``, for JSON, are everything that the results depend on. A folder with settings and
    nothing else is free: its run has written nothing yet.

    Raises:
        OSError: If the settings of the earlier run are damaged.
        ValueError: If there is an earlier run and ``resume`` is False, if it had other settings,
            or if the folder contains other files.
    """
    settings = json.loads(json.dumps(settings))
    stored = folder / _SETTINGS
    if stored.exists() and any(path != stored for path in folder.iterdir()):
        if not resume:
            raise ValueError(
                f"{folder} contains the files of an earlier run. Continue that run (resume=True, "
                "--resume), or remove the folder"
            )
        earlier = stored_settings(folder)
        names = [name for name in settings if earlier.get(name) != settings[name]]
        if names:
            raise ValueError(
                f"{folder} belongs to a run with other settings. Expected: "
                f"{ {name: earlier.get(name) for name in names} }. Received: "
                f"{ {name: settings[name] for name in names} }. Use the earlier settings, or "
                "remove the folder"
            )
        return
    others = folder.iterdir() if folder.exists() and not stored.exists() else ()
    if any(path.suffix != ".tmp" for path in others):
        raise ValueError(
            f"{folder}, which this run would write to, contains other files. Remove it, or choose "
            "another output"
        )
    folder.mkdir(exist_ok=True)
    try:
        with atomic_write(stored) as temporary:
            temporary.write_text(json.dumps(settings))
    except OSError:
        leave_folder(folder)
        raise


def leave_folder(folder: pathlib.Path) -> None:
    """Remove the folder of a run that has written nothing but its settings."""
    if folder.is_dir() and all(path.name == _SETTINGS for path in folder.iterdir()):
        shutil.rmtree(folder)


def stored_settings(folder: pathlib.Path) -> dict:
    """Return the settings of the run in a folder; an empty dict if there is no run.

    Raises:
        OSError: If the settings are damaged.
    """
    stored = folder / _SETTINGS
    if not stored.exists():
        return {}
    try:
        settings = json.loads(stored.read_bytes())
    except (ValueError, RecursionError) as error:
        settings = error
    if not isinstance(settings, dict):
        raise OSError(f"{stored} is damaged. Received: {settings!r:.60}. Remove {folder}")
    return settings
