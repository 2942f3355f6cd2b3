"""Uploads to the Hugging Face Hub, against a server on the loopback."""

import base64
import http.server
import json
import re

import pytest

from keras_elmo.cli import main
from keras_elmo.hub import upload
from tests.test_released_models import serve

# huggingface_hub calls its HTTP client in a deprecated way.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

CARD = "---\nlibrary_name: keras\nlicense: cc-by-sa-4.0\n---\n\n# Tiny\n"


class Handler(http.server.BaseHTTPRequestHandler):
    """The requests of ``upload_folder``: small files are in the commit, .hdf5 files go to LFS."""

    def do_POST(self):
        server, text = self.server, self.rfile.read(int(self.headers["Content-Length"])).decode()
        if server.refuses:
            return self.send_error(403, "You may not write here")
        address = f"http://127.0.0.1:{server.server_port}"
        if self.path == "/api/repos/create":
            server.repository = json.loads(text)
            answer = {"url": f"{address}/ada/tiny"}
        elif self.path == "/api/validate-yaml":
            answer = {"errors": [], "warnings": []}
        elif self.path == "/api/models/ada/tiny/preupload/main":
            names = [file["path"] for file in json.loads(text)["files"]]
            modes = {n: "lfs" if n.endswith(".hdf5") else "regular" for n in names}
            files = [{"path": n, "uploadMode": modes[n], "shouldIgnore": False} for n in names]
            answer = {"files": files}
        elif self.path == "/ada/tiny.git/info/lfs/objects/batch":
            [file] = json.loads(text)["objects"]
            actions = {"upload": {"href": f"{address}/lfs/{file['oid']}"}}
            answer = {"objects": [file | {"actions": actions}]}
        elif self.path == "/api/models/ada/tiny/commit/main":
            for line in map(json.loads, text.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    server.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    server.files[value["path"]] = server.large[value["oid"]]
            answer = {"commitUrl": f"{address}/ada/tiny/commit/1234", "commitOid": "1234"}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.large[self.path.removeprefix("/lfs/")] = content
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    # Xet, the newer protocol for large files, is compiled and needs a server of its own.
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    for server in serve(Handler, monkeypatch):
        server.files, server.large, server.refuses = {}, {}, False
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        yield server


def test_upload_sends_every_file_of_a_preset(preset, server, capsys):
    (preset / "README.md").write_text(CARD)
    assert main(["upload", str(preset), "hf://ada/tiny", "--private", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["commit"].endswith("/ada/tiny/commit/1234")
    assert server.files == {path.name: path.read_bytes() for path in preset.iterdir()}
    assert server.repository["name"] == "tiny" and "private" in json.dumps(server.repository)


def test_upload_warns_of_a_card_without_a_licence(preset, server):
    with pytest.warns(UserWarning, match=r"README.md names no licence"):
        upload(preset, "hf://ada/tiny")


def test_a_refusal_is_an_oserror(preset, server):
    (preset / "README.md").write_text(CARD)
    server.refuses = True
    with pytest.raises(OSError, match="to accept hf://ada/tiny. Received: .*403.* hf auth login"):
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
