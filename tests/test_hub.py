"""Downloads from the Hugging Face Hub, and uploads, without a network."""

import json
import re
import sys
from unittest import mock

import numpy as np
import pytest

from keras_elmo import Embedder
from keras_elmo.cli import main
from keras_elmo.hub import upload
from keras_elmo.released_models import download

CARD = "---\nlibrary_name: keras\nlicense: cc-by-sa-4.0\n---\n\n# Tiny\n"


@pytest.fixture
def hub(monkeypatch):
    """The functions of huggingface_hub, replaced by mocks that check their arguments."""
    module = pytest.importorskip("huggingface_hub")
    for name in ("snapshot_download", "HfApi"):
        monkeypatch.setattr(module, name, mock.create_autospec(getattr(module, name)))
    return module


def test_a_model_of_the_hub(hub, tiny_preset, monkeypatch):
    hub.snapshot_download.return_value = str(tiny_preset)
    sentences = [["Dogs", "bark", "."]]
    [expected] = Embedder(tiny_preset).embed(sentences)
    for preset, revision in (("hf://ada/tiny", None), ("hf://ada/tiny@v1", "v1")):
        np.testing.assert_array_equal(Embedder(preset).embed(sentences)[0], expected)
        hub.snapshot_download.assert_called_with("ada/tiny", revision=revision)
    hub.snapshot_download.side_effect = RuntimeError("404\nNot found")
    message = r"hf://user/model@v1. Received: hf://ada/no \(404 Not found\).*hf auth login"
    with pytest.raises(OSError, match=message):
        download("hf://ada/no")
    for wrong in ("hf://ada", "hf://a/b/c"):
        with pytest.raises(ValueError, match=f"hf://user/model@v1. Received: '{wrong}'"):
            download(wrong)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r"hf://ada/tiny needs huggingface_hub. .* -e .\.\[hub"):
        download("hf://ada/tiny")


def test_upload(hub, preset, capsys):
    (preset / "README.md").write_text(CARD)
    api = hub.HfApi.return_value
    api.upload_folder.return_value.commit_url = "https://hub/commit/1234"
    assert main(["upload", str(preset), "hf://ada/tiny", "--private", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["commit"] == "https://hub/commit/1234"
    api.create_repo.assert_called_with("ada/tiny", private=True, exist_ok=True)
    message = "Upload preset"
    api.upload_folder.assert_called_with(
        repo_id="ada/tiny", folder_path=preset, commit_message=message
    )
    (preset / "README.md").write_text("# Tiny")
    with pytest.warns(UserWarning, match=r"README.md names no licence"):
        upload(preset, "hf://ada/tiny")
    api.upload_folder.side_effect = RuntimeError("403")
    (preset / "README.md").write_text(CARD)
    with pytest.raises(OSError, match=r"not accept hf://ada/tiny \(403\).* hf auth login"):
        upload(preset, "hf://ada/tiny")


@pytest.mark.parametrize(
    "directory, address, message",
    [
        (".", "ada/tiny", "like hf://user/model. Received: address='ada/tiny'"),
        (".", "hf://ada/tiny/x", "like hf://user/model. Received: address='hf://ada/tiny/x'"),
        ("nowhere", "hf://ada/tiny", "the directory of a preset. Received: directory="),
        (".", "hf://ada/tiny", "options.json"),
    ],
)
def test_upload_checks_before_it_sends(tmp_path, monkeypatch, directory, address, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        upload(directory, address)


@pytest.mark.parametrize("address", ["", "https://example.org/a/b"])
def test_the_links_of_readme_survive_on_the_package_index(address):
    pytest.importorskip("hatchling")
    from hatch_build import long_description

    text = "See [a page](docs/a.md), [b](https://b.org) and ![a plot](docs/c.png)."
    found = long_description(text, address)
    if address:
        assert f"[a page]({address}/blob/HEAD/docs/a.md)" in found
        assert f"![a plot]({address}/raw/HEAD/docs/c.png)" in found
    else:
        assert found == "See a page, [b](https://b.org) and ."
    assert not re.search(r"\]\((?!https:)", found)
