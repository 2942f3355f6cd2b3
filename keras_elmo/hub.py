"""Upload presets to the Hugging Face Hub."""

import re
import warnings

from keras_elmo.presets import open_preset
from keras_elmo.released_models import HUB
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.extras import import_extra
from keras_elmo.utils.files import PathLike, library_errors, local_path


def upload(directory: PathLike, address: str, private: bool = False) -> str:
    """Upload the directory of a preset to the Hugging Face Hub.

    ``from_preset(address)`` then loads it. The package ``huggingface_hub`` makes the repository if
    it does not exist, and uploads all files of the directory as one commit. Log in first, with
    ``hf auth login`` or the variable ``HF_TOKEN``.

    Args:
        directory: str or path. The directory of the preset, with its model card ``README.md``.
        address: str. The address on the Hub, ``"hf://user/model"``.
        private: bool. Whether a new repository is private.

    Returns:
        The URL of the commit.

    Raises:
        ImportError: If huggingface_hub is missing.
        ValueError: If the address is invalid, or if the directory contains no preset.
        OSError: If the Hub refuses the upload or cannot be reached.

    Warns:
        UserWarning: If the model card names no licence.
    """
    repository = address.removeprefix(HUB)
    if not re.fullmatch(rf"{HUB}[\w.-]+/[\w.-]+", address):
        raise invalid(f"upload expects an address like {HUB}user/model", f"address={address!r}")
    path = local_path(directory)
    if not path.is_dir():
        raise invalid("upload expects the directory of a preset", f"directory={str(path)!r}")
    files = open_preset(path)
    files.read()  # raises if a file is missing or damaged
    if not re.match(r"---\n(?:.*\n)*?license: *\S", files.card):
        warnings.warn(
            f"{path / 'README.md'} names no licence, so nobody may use the weights. Begin the file "
            "with the lines ---, license: cc-by-sa-4.0 (for example) and ---",
            stacklevel=2,
        )
    huggingface_hub = import_extra("huggingface_hub", "upload", "huggingface_hub", "hub")
    api, advice = huggingface_hub.HfApi(), "Check the network and run hf auth login"
    with library_errors(f"The Hugging Face Hub did not accept {address}", advice):
        api.create_repo(repository, private=private, exist_ok=True)
        message = f"Upload {path.resolve().name}"
        commit = api.upload_folder(repo_id=repository, folder_path=path, commit_message=message)
    return str(commit.commit_url)
