"""Models by name: presets in the package, a registry of released models, and the Hugging Face Hub.

The registry, ``released_models.json``, was collected from public pages; its addresses were not
tried. A downloaded model is a folder in the cache, which ``from_preset`` reads without a network.
"""

import difflib
import functools
import http.client
import json
import os
import pathlib
import re
import urllib.request
from typing import Any

from keras_elmo.formats.folder import Folder
from keras_elmo.formats.hdf5 import Hdf5Reader
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.extras import import_extra
from keras_elmo.utils.files import (
    atomic_write,
    digest_of,
    library_errors,
    local_path,
    read_options,
)
from keras_elmo.utils.progress import progress_bar

# The start of an address on the Hugging Face Hub.
HUB = "hf://"
# Seconds that a mirror may be silent.
_TIMEOUT = 30.0


def bundled() -> dict[str, pathlib.Path]:
    """Return the directories of the presets that come with the package, by name."""
    package = pathlib.Path(__file__).parent
    # The weights are inside an installed package, but next to the package in a checkout.
    for folder in (package / "weights", package.parent / "weights"):
        if folder.is_dir():
            return {d.name: d for d in sorted(folder.iterdir()) if (d / "options.json").is_file()}
    return {}


@functools.cache
def released_models() -> dict[str, dict[str, Any]]:
    """Return facts about the models of the registry, by name.

    ``text`` is the text that the biLM was trained on, ``tokens`` says how it was tokenised, and
    ``tokenizer`` is the ``WordTokenizer`` that gives such tokens, if there is one. ``files`` are
    empty if a program cannot fetch them. Each has ``file``, the name; ``urls``, the mirrors in
    order; and ``bytes``, ``sha256`` and ``md5`` where they are known.
    """
    models = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text("utf-8"))["models"]
    return {model["name"]: {"page": None, "tokenizer": None, **model} for model in models}


def cache_folder() -> pathlib.Path:
    """Return the folder of downloaded models, ``keras_elmo`` inside the folder of Keras."""
    return local_path(os.environ.get("KERAS_HOME") or "~/.keras") / "keras_elmo"


def is_downloaded(model: dict[str, Any]) -> bool:
    """Return whether all files of a model of the registry are in the cache."""
    paths = [cache_folder() / model["name"] / file["file"] for file in model["files"]]
    return bool(paths) and all(path.is_file() for path in paths)


def is_released(preset: object) -> bool:
    """Return whether a preset is the name of a released model or an address on the Hub."""
    return isinstance(preset, str) and (preset.startswith(HUB) or preset in released_models())


def download(name: str) -> pathlib.Path:
    """Download a released model into the cache, unless it is there already.

    The mirrors of a file are tried in order. A file counts as downloaded if it has the size and
    the checksum of the registry, where they are known, and can be opened. Files that were put
    into the folder of the model by hand are used unchanged.

    Args:
        name: str. Name of the model, as ``released_models()`` lists them; ``"hf://user/model"``
            or ``"hf://user/model@revision"`` for a model of the Hugging Face Hub; or the name of
            a bundled preset.

    Returns:
        Path that ``from_preset`` reads.

    Raises:
        ImportError: If the model is on the Hugging Face Hub and huggingface_hub is missing.
        ValueError: If the registry has no such model, or no address of its files.
        OSError: If no mirror gives the file; the error names every address, the expected
            size and the folder for a file that was fetched by hand.
    """
    if name.startswith(HUB):
        return _snapshot(name)
    if name in bundled():
        return bundled()[name]
    model = released_models().get(name)
    if model is None:
        raise invalid("Expected the name of a released model", repr(name), suggestion(name))
    if not model["files"]:
        raise invalid(
            f"The files of {name} cannot be fetched by a program",
            f"download of {name}",
            f"Fetch them from {model['page']} and pass their folder to from_preset",
        )
    paths = [_fetch(file, model) for file in model["files"]]
    return paths[0] if len(paths) == 1 else paths[0].parent


def suggestion(name: str) -> str:
    """Return advice about a misspelt name of a model: similar names, if there are any."""
    known = {x.lower(): x for x in [*bundled(), *released_models()]}
    found = [known[x] for x in difflib.get_close_matches(name.lower(), known)]
    similar = f"Similar names: {', '.join(found)}. " if found else ""
    return f"{similar}keras-elmo presets lists all names"


def _fetch(file: dict, model: dict) -> pathlib.Path:
    """Return the path of a file in the cache. Fetch it from the first mirror that gives it."""
    target = cache_folder() / model["name"] / file["file"]
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    failures = []
    for url in file["urls"]:
        try:
            with atomic_write(target) as path:
                _copy(url, path, file)
                _check(path, file)
            return target
        except (OSError, ValueError, http.client.HTTPException) as error:
            failures.append(f"{url} ({' '.join(str(error).split())[:200]})")
    size = f"{file['bytes']} bytes" if "bytes" in file else "size not known"
    page = f" from {model['page']}" if model["page"] else ""
    raise OSError(
        f"No mirror of {model['name']} gave {file['file']} ({size}). "
        f"Received: {'; '.join(failures)}. Try again later, or fetch the file by hand"
        f"{page} and put it into {target.parent}"
    )


def _copy(url: str, path: pathlib.Path, file: dict) -> None:
    """Copy the content of an address into a file."""
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as response, open(path, "wb") as output:
        expected = file.get("bytes") or response.headers.get("Content-Length")
        size = int(expected) if expected else None
        with progress_bar(None, desc=file["file"], total=size, unit="B", unit_scale=True) as bar:
            while block := response.read(1 << 20):
                bar.update(output.write(block))
        if size is not None and output.tell() != size:
            raise OSError(f"expected {size} bytes, received {output.tell()}")


def _check(path: pathlib.Path, file: dict) -> None:
    """Raise an error if a file has another checksum, or does not open."""
    for algorithm in ("sha256", "md5"):
        if algorithm in file and (digest := digest_of(path, algorithm)) != file[algorithm]:
            raise OSError(f"expected {algorithm} {file[algorithm]}, received {digest}")
    if file["file"].endswith(".json"):
        read_options(path)
    elif file["file"].endswith(".hdf5"):
        with Hdf5Reader(path):
            pass
    else:
        Folder(path)  # unpacks the archive


def _snapshot(address: str) -> pathlib.Path:
    """Return the folder of a model of the Hugging Face Hub, downloaded or from the cache."""
    repository, _, revision = address.removeprefix(HUB).partition("@")
    expected = f"Expected a model of the Hugging Face Hub, as {HUB}user/model or {HUB}user/model@v1"
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise invalid(expected, repr(address))
    huggingface_hub = import_extra("huggingface_hub", address, "huggingface_hub", "hub")
    advice = (
        "Check the name and the network; for a private model run hf auth login. Or fetch the files "
        "by hand and pass their folder"
    )
    with library_errors(f"{expected}. Received: {address}", advice):
        folder = huggingface_hub.snapshot_download(repository, revision=revision or None)
    return pathlib.Path(folder)
