"""Released models by name: a registry of addresses, a cache of files, and the Hugging Face Hub.

The registry, ``released_models.json``, was collected from public pages; its addresses were not
tried. A downloaded model is a folder in the cache, which ``from_preset`` reads without a network.
"""

import contextlib
import dataclasses
import functools
import importlib.resources
import io
import json
import os
import pathlib
import re
import sys
import tempfile
from typing import Any

from keras_elmo.utils.checks import nearest_names
from keras_elmo.utils.extras import import_extra
from keras_elmo.utils.file_lock import locked
from keras_elmo.utils.files import (
    atomic_write,
    digest_of,
    made_folder,
    read_object,
    without_scheme,
)

# The start of an address on the Hugging Face Hub.
HUB = "hf://"

# The first bytes of the containers, by the end of their names.
_SIGNATURES = {
    ".hdf5": (b"\x89HDF",),
    ".zip": (b"PK",),
    ".tar.gz": (b"\x1f\x8b",),
    ".tar.bz2": (b"BZh",),
    ".json": (b"{",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleasedModel:
    """One released model in the registry.

    Attributes:
        name: str. Publisher, model and language, as ``allennlp_original_en``.
        language: str. Code of the language; ``"protein"`` for amino acids.
        text: str. The text that the biLM was trained on.
        format: str. The format of the files.
        licence: str. The licence, as far as the publisher states one.
        tokens: str. How the training text was tokenised, as far as it is known.
        files: tuple of dict. For each file ``file``, the name; ``urls``, the mirrors in order;
            ``bytes``, ``sha256`` and ``md5`` where they are known. Empty if the files cannot
            be fetched by a program.
        page: str or None. Page of the publisher.
        tokenizer: str or None. The ``WordTokenizer`` that gives such tokens.
        guessed: bool. Whether an address was guessed from the addresses of similar models.
    """

    name: str
    language: str
    text: str
    format: str
    licence: str
    tokens: str
    files: tuple[dict, ...]
    page: str | None = None
    tokenizer: str | None = None
    guessed: bool = False

    @property
    def n_bytes(self) -> int | None:
        """Return the size of all files in bytes, None if it is not known."""
        if not self.files or any("bytes" not in file for file in self.files):
            return None
        return sum(file["bytes"] for file in self.files)

    @property
    def folder(self) -> pathlib.Path:
        """Return the folder of the model in the cache, downloaded or not."""
        return cache_folder() / self.name

    @property
    def is_downloaded(self) -> bool:
        """Return whether all files of the model are in the cache."""
        return bool(self.files) and all((self.folder / f["file"]).is_file() for f in self.files)


@functools.cache
def released_models() -> dict[str, ReleasedModel]:
    """Return the models of the registry by name."""
    text = importlib.resources.files("keras_elmo").joinpath("released_models.json").read_text()
    models = (
        ReleasedModel(**{**m, "files": tuple(m["files"])}) for m in json.loads(text)["models"]
    )
    return {model.name: model for model in models}


def cache_folder() -> pathlib.Path:
    """Return the folder of downloaded models, ``keras_elmo`` inside the folder of Keras."""
    home = os.environ.get("KERAS_HOME") or pathlib.Path.home() / ".keras"
    return pathlib.Path(home) / "keras_elmo"


def models_at_url(url: str) -> list[str]:
    """Return the names of the models that have a file or a page at this address."""
    wanted, names = without_scheme(url), []
    for model in released_models().values():
        addresses = [model.page or "", *(a for file in model.files for a in file["urls"])]
        if wanted and wanted in map(without_scheme, addresses):
            names.append(model.name)
    return names


def model_path(model: ReleasedModel) -> pathlib.Path:
    """Return the path that ``from_preset`` reads: the archive, or the folder of several files."""
    return model.folder / model.files[0]["file"] if len(model.files) == 1 else model.folder


def download(name: str) -> pathlib.Path:
    """Download a released model into the cache, unless it is there already.

    Every file is checked for its size and checksum where they are known, and for its kind.
    Where no checksum is known, the digest of the first download is kept and later downloads
    are compared with it. Files appear in the folder of the model when all of them are complete.

    ``"hf://user/model"`` or ``"hf://user/model@revision"`` is a model on the Hugging Face Hub.
    The package ``huggingface_hub`` downloads it into its cache.

    Args:
        name: str. Name of the model, as ``released_models()`` lists them, or an address on the
            Hugging Face Hub.

    Returns:
        Path that ``from_preset`` reads.

    Raises:
        ImportError: If the model is on the Hugging Face Hub and huggingface_hub is missing.
        ValueError: If the registry has no such model, or no address of its files, or if
            ``digests.json`` in the cache is damaged.
        OSError: If no mirror gives the file; the error names every address, the expected
            size and the folder for a file that was fetched by hand.
    """
    if name.startswith(HUB):
        return _snapshot(name)
    model = released_models().get(name)
    if model is None:
        near = nearest_names(name, released_models())
        raise ValueError(
            f"Expected the name of a released model. Received: {name!r}. "
            + (f"Similar names: {', '.join(near)}. " if near else "")
            + "keras-elmo presets lists all"
        )
    if not model.files:
        raise ValueError(
            f"The files of {name} cannot be fetched by a program. Received: download of {name}. "
            f"Fetch them from {model.page} and pass their folder to from_preset"
        )
    if model.is_downloaded and name in _read_ledger():
        return model_path(model)
    with (
        made_folder(model.folder),
        tempfile.TemporaryDirectory(dir=model.folder, prefix=".") as temporary,
    ):
        paths = {}
        for file in model.files:
            path = model.folder / file["file"]
            if path.is_file():  # fetched by hand
                _check_present(path, file, name)
            else:
                path = _fetch(file, pathlib.Path(temporary), model)
            paths[file["file"]] = path
        _compare_digests(model, paths)
        for file_name, path in paths.items():
            os.replace(path, model.folder / file_name)
    return model_path(model)


def is_released(preset: object) -> bool:
    """Return whether a preset is the name of a released model or an address on the Hub."""
    return isinstance(preset, str) and (preset.startswith(HUB) or preset in released_models())


def _snapshot(address: str) -> pathlib.Path:
    """Return the folder of a model of the Hugging Face Hub, downloaded or from the cache."""
    repository, _, revision = address.removeprefix(HUB).partition("@")
    expected = f"Expected a model of the Hugging Face Hub, as {HUB}user/model or {HUB}user/model@v1"
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise ValueError(f"{expected}. Received: {address!r}")
    huggingface_hub = import_extra("huggingface_hub", address, "huggingface_hub", "hub")
    try:
        return pathlib.Path(
            huggingface_hub.snapshot_download(repository, revision=revision or None)
        )
    except Exception as error:  # errors of its HTTP client are neither OSError nor ValueError
        raise OSError(
            f"{expected}. Received: {address} ({' '.join(str(error).split())[:300]}). Check the "
            "name and the network; for a private model run hf auth login. Or fetch the files by "
            "hand and pass their folder"
        ) from error


def _fetch(file: dict, folder: pathlib.Path, model: ReleasedModel) -> pathlib.Path:
    """Fetch a file from the first mirror that gives it, and return its path in the folder."""
    import keras

    failures = []
    for url in file["urls"]:
        target = folder / file["file"]
        try:
            # Keras joins cache_dir and cache_subdir, and prints the progress.
            with contextlib.redirect_stdout(sys.stderr or io.StringIO()):
                keras.utils.get_file(
                    file["file"], url, cache_dir=str(folder.parent), cache_subdir=folder.name
                )
            _check(target, file, model.name)
            return target
        except Exception as error:  # get_file raises bare Exceptions
            target.unlink(missing_ok=True)
            failures.append(f"{url} ({' '.join(str(error).split())[:200]})")
    size = f"{file['bytes']} bytes" if "bytes" in file else "size not known"
    guessed = ". The address was guessed from those of similar models" if model.guessed else ""
    page = f" from {model.page}" if model.page else ""
    raise OSError(
        f"No mirror of {model.name} gave {file['file']} ({size}). "
        f"Received: {'; '.join(failures)}{guessed}. Try again later, or fetch the file by hand"
        f"{page} and put it into {model.folder}"
    )


def _check_present(path: pathlib.Path, file: dict, name: str) -> None:
    try:
        _check(path, file, name)
    except OSError as error:
        raise OSError(
            f"{name} has a file that is not the expected one. Received: {path}: {error}. "
            "Delete it, or put the right file there"
        ) from None


def _check(path: pathlib.Path, file: dict, name: str) -> None:
    """Raise an ``OSError`` if a file is not the expected one."""
    size = path.stat().st_size
    if "bytes" in file and size != file["bytes"]:
        raise OSError(f"expected {file['bytes']} bytes, received {size}")
    with open(path, "rb") as opened:
        start = opened.read(512).lstrip()
    expected = next((s for end, s in _SIGNATURES.items() if path.name.endswith(end)), None)
    if expected and not start.startswith(expected):
        kind = "a web page" if start[:1] == b"<" else f"a file that begins with {start[:16]!r}"
        raise OSError(f"expected {path.name} of {name}, received {kind}")
    for algorithm in ("sha256", "md5"):
        if algorithm in file:
            digest = digest_of(path, algorithm)
            if digest != file[algorithm]:
                raise OSError(f"expected {algorithm} {file[algorithm]}, received {digest}")


def _ledger() -> pathlib.Path:
    return cache_folder() / "digests.json"


def _read_ledger() -> dict[str, Any]:
    """Return the digests of the first downloads, by model and file."""
    return read_object(_ledger(), "Digest file") if _ledger().is_file() else {}


def _compare_digests(model: ReleasedModel, paths: dict[str, pathlib.Path]) -> None:
    """Compare the files with the first download; keep the digests of a first download."""
    ledger = _ledger()
    digests = {name: digest_of(path) for name, path in paths.items()}
    with locked(ledger.with_name(ledger.name + ".lock"), f"writes {ledger}", wait=True):
        known = _read_ledger()
        first = known.setdefault(model.name, digests)
        changed = sorted(file for file in digests if first.get(file) != digests[file])
        if changed:
            raise OSError(
                f"Expected the files of {model.name} that were downloaded before. Received: other "
                f"content in {', '.join(changed)}. If the publisher replaced them, delete "
                f"{model.name!r} from {ledger} and download again"
            )
        with atomic_write(ledger) as (temporary,):
            temporary.write_text(json.dumps(known, indent=1))
