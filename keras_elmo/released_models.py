"""Models by name: presets in the package, a registry of released models, and the Hugging Face Hub.

The registry, ``released_models.json``, was collected from public pages; its addresses were not
tried. A downloaded model is a folder in the cache, which ``from_preset`` reads without a network.
"""

import dataclasses
import functools
import http.client
import json
import os
import pathlib
import re
import urllib.request

from keras_elmo.formats.folder import Folder
from keras_elmo.formats.hdf5 import Hdf5Reader
from keras_elmo.utils.checks import nearest_names
from keras_elmo.utils.extras import import_extra
from keras_elmo.utils.files import atomic_write, digest_of, local_path, read_object
from keras_elmo.utils.progress import progress_bar

# The start of an address on the Hugging Face Hub.
HUB = "hf://"
# Seconds that a mirror may be silent.
_TIMEOUT = 30.0


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


def bundled() -> dict[str, pathlib.Path]:
    """Return the directories of the presets that come with the package, by name."""
    package = pathlib.Path(__file__).parent
    # The weights are inside an installed package, but next to the package in a checkout.
    for folder in (package / "weights", package.parent / "weights"):
        if folder.is_dir():
            return {d.name: d for d in sorted(folder.iterdir()) if (d / "options.json").is_file()}
    return {}


@functools.cache
def released_models() -> dict[str, ReleasedModel]:
    """Return the models of the registry by name."""
    models = json.loads(pathlib.Path(__file__).with_suffix(".json").read_text("utf-8"))["models"]
    return {m["name"]: ReleasedModel(**{**m, "files": tuple(m["files"])}) for m in models}


def cache_folder() -> pathlib.Path:
    """Return the folder of downloaded models, ``keras_elmo`` inside the folder of Keras."""
    return local_path(os.environ.get("KERAS_HOME") or "~/.keras") / "keras_elmo"


def is_released(preset: object) -> bool:
    """Return whether a preset is the name of a released model or an address on the Hub."""
    return isinstance(preset, str) and (preset.startswith(HUB) or preset in released_models())


def download(name: str) -> pathlib.Path:
    """Download a released model into the cache, unless it is there already.

    The mirrors of a file are tried in order. A file counts as downloaded if it has the size and
    the checksum of the registry, where they are known, and opens as the kind of file its name
    says. Files that were put into the folder of the model by hand are used as they are.

    ``"hf://user/model"`` or ``"hf://user/model@revision"`` is a model on the Hugging Face Hub.
    The package ``huggingface_hub`` downloads it into its cache.

    Args:
        name: str. Name of the model, as ``released_models()`` lists them, or an address on the
            Hugging Face Hub. For a bundled preset nothing is downloaded.

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
        near = nearest_names(name, [*bundled(), *released_models()])
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
    for file in model.files:
        if not (model.folder / file["file"]).is_file():
            _fetch(file, model)
    return model.folder / model.files[0]["file"] if len(model.files) == 1 else model.folder


def _fetch(file: dict, model: ReleasedModel) -> None:
    """Fetch a file from the first mirror that gives it."""
    model.folder.mkdir(parents=True, exist_ok=True)
    failures = []
    for url in file["urls"]:
        try:
            # The name keeps its ending, which says how to open the file.
            with atomic_write(model.folder / file["file"]) as path:
                _copy(url, path, file)
                _check(path, file)
            return
        except (OSError, ValueError, http.client.HTTPException) as error:
            failures.append(f"{url} ({' '.join(str(error).split())[:200]})")
    size = f"{file['bytes']} bytes" if "bytes" in file else "size not known"
    guessed = ". The address was guessed from those of similar models" if model.guessed else ""
    page = f" from {model.page}" if model.page else ""
    raise OSError(
        f"No mirror of {model.name} gave {file['file']} ({size}). "
        f"Received: {'; '.join(failures)}{guessed}. Try again later, or fetch the file by hand"
        f"{page} and put it into {model.folder}"
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
        read_object(path)
    elif file["file"].endswith(".hdf5"):
        Hdf5Reader(path).close()
    else:
        Folder(path)  # unpacks the archive


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
