"""Released models: the registry, and downloads from a server on the loopback."""

import dataclasses
import hashlib
import http.server
import json
import re
import sys
import threading
import time

import numpy as np
import pytest

from keras_elmo import Embedder
from keras_elmo import released_models as module
from keras_elmo.released_models import cache_folder, download, released_models
from tests.test_presets import tarred

NAMES = ("options.json", "weights.hdf5")


class Handler(http.server.BaseHTTPRequestHandler):
    """Serve ``server.files``. The first part of the path is what goes wrong."""

    def do_GET(self):
        self.server.requests.append(self.path)
        kind, _, name = self.path.strip("/").partition("/")
        if kind == "missing":
            return self.send_error(404)
        body = self.server.files[name]
        length = len(body)
        if kind == "stalled":
            time.sleep(2)
        elif kind == "login":
            body = b"<!DOCTYPE html><title>Sign in</title>"
        elif kind in ("short", "cut"):  # a cut body has no length
            body = body[: length // 2]
        elif kind == "long":
            body += bytes(1000)
        self.send_response(200)
        if kind in ("good", "short"):
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


def serve(handler, monkeypatch):
    """Yield a server on the loopback, for a fixture."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def server(monkeypatch, tmp_path, tiny_preset):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr(module, "_TIMEOUT", 0.5)
    files = {name: (tiny_preset / name).read_bytes() for name in NAMES}
    archive = tarred(tmp_path / "model.tar.gz", files)
    for server in serve(Handler, monkeypatch):
        server.requests = []
        server.files = files | {"model.tar.gz": archive.read_bytes()}
        yield server


@pytest.fixture
def model(server, monkeypatch):
    """Register a model, each file with the mirrors of some kinds."""

    def register(*kinds, files=NAMES, known=None, **fields):
        address = f"http://127.0.0.1:{server.server_port}"
        rows = tuple(
            {"file": file, "urls": [f"{address}/{kind}/{file}" for kind in kinds], **(known or {})}
            for file in files
        )
        first = next(iter(released_models().values()))
        tiny = dataclasses.replace(first, name="tiny_en", files=rows, **fields)
        monkeypatch.setattr(module, "released_models", lambda: {"tiny_en": tiny})
        return tiny

    return register


def leftovers():
    return sorted(path.name for path in cache_folder().rglob("*") if path.is_file())


def test_files_are_downloaded_once(model, server, capsys):
    tiny = model("good")
    path = download("tiny_en")
    assert not capsys.readouterr().out  # stdout is for results, as JSON
    assert path == tiny.folder and tiny.is_downloaded
    assert {p.name: p.read_bytes() for p in path.iterdir()} == {n: server.files[n] for n in NAMES}
    server.requests.clear()
    assert download("tiny_en") == path and server.requests == []
    assert Embedder("tiny_en").embed([["a"]])[0].shape[1] == 1


def test_an_archive_is_a_path_itself(model):
    tiny = model("good", files=["model.tar.gz"])
    assert download("tiny_en") == tiny.folder / "model.tar.gz"


def test_mirrors_are_tried_in_order(model, server):
    kinds = ["missing", "stalled", "short", "cut", "login", "good"]
    model(*kinds, files=["weights.hdf5"])
    path = download("tiny_en")
    assert [path.split("/")[1] for path in server.requests] == kinds
    assert path.read_bytes() == server.files["weights.hdf5"] and leftovers() == ["weights.hdf5"]


@pytest.mark.parametrize("file", [*NAMES, "model.tar.gz"])
@pytest.mark.parametrize(
    ("kind", "known", "message"),
    [
        ("missing", {}, "404"),
        ("stalled", {}, "timed out"),
        ("short", {}, r"expected \d+ bytes, received \d+"),
        ("cut", {}, "is damaged|is not JSON|cannot be unpacked"),
        ("login", {}, "is damaged|is not JSON|cannot be unpacked"),
        ("long", {"bytes": 7}, r"expected 7 bytes, received \d+"),
        ("good", {"sha256": "00"}, "expected sha256 00, received [0-9a-f]{64}"),
        ("good", {"md5": "00"}, "expected md5 00, received [0-9a-f]{32}"),
    ],
)
def test_faults(model, file, kind, known, message):
    tiny = model(kind, files=[file], known=known)
    with pytest.raises(OSError, match=message) as caught:
        download("tiny_en")
    expected = rf"No mirror of tiny_en gave {file} \(.*\). Received: http.*/{kind}/{file}"
    assert re.search(expected, str(caught.value))
    assert f"put it into {tiny.folder}" in str(caught.value)
    assert leftovers() == []


def test_an_error_says_that_an_address_was_guessed(model):
    model("missing", guessed=True, page="http://hdl.handle.net/1")
    message = "address was guessed .* fetch the file by hand from http://hdl.handle.net/1 and put"
    with pytest.raises(OSError, match=message):
        download("tiny_en")


def test_files_that_were_fetched_by_hand(model, server, tiny_preset, tmp_path, monkeypatch):
    """They need no network, and no place to write: the cache can belong to someone else."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KERAS_HOME", "~/home")
    tiny = model("missing")
    assert tiny.folder == tmp_path / "home" / "keras_elmo" / "tiny_en"
    tiny.folder.parent.mkdir(parents=True)
    tiny.folder.symlink_to(tiny_preset)
    monkeypatch.setattr(module, "atomic_write", None)
    assert download("tiny_en") == tiny.folder and server.requests == []


def test_names():
    with pytest.raises(ValueError, match="Received: 'AllenNLP_orignal_en'. Similar.*allennlp_orig"):
        download("AllenNLP_orignal_en")
    with pytest.raises(ValueError, match="cannot be fetched by a program.*https://figshare"):
        download("olivetti_materials_en")
    assert download("elmo_mini_en") == module.bundled()["elmo_mini_en"]


def test_the_registry_is_complete():
    for name, model in released_models().items():
        assert re.fullmatch(r"[a-z0-9_.]+", name) and model.language and model.licence
        assert model.files or model.page
        for file in model.files:
            assert file["file"].endswith((".json", ".hdf5", ".zip", ".tar.gz", ".tar.bz2"))
            assert "/" not in file["file"] and file["urls"]
            assert all(re.match("https?://", url) for url in file["urls"])
            assert len(file.get("sha256", "0" * 64)) == 64 and len(file.get("md5", "0" * 32)) == 32
    assert released_models()["allennlp_original_en"].n_bytes == 374435128


class HubHandler(http.server.BaseHTTPRequestHandler):
    """Serve one model as the Hugging Face Hub does."""

    def do_GET(self):
        commit, files = "0123456789abcdef0123456789abcdef01234567", self.server.files
        path = self.path.partition("?")[0]
        headers = {"X-Repo-Commit": commit}
        if path == "/api/models/ada/tiny/revision/silent":
            return  # The connection ends without an answer.
        if path in ("/api/models/ada/tiny/revision/main", "/api/models/ada/tiny/revision/v1"):
            body = json.dumps({"id": "ada/tiny", "sha": commit}).encode()
        elif path == f"/api/models/ada/tiny/tree/{commit}":
            rows = [{"type": "file", "path": f, "size": len(c), "oid": f} for f, c in files.items()]
            body = json.dumps(rows).encode()
        elif path.startswith(f"/ada/tiny/resolve/{commit}/"):
            body = files[path.rpartition("/")[2]]
            headers["ETag"] = f'"{hashlib.sha256(body).hexdigest()}"'
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *arguments):
        pass


def test_a_model_of_the_hub(tiny_preset, tmp_path, monkeypatch, server):
    constants = pytest.importorskip("huggingface_hub.constants")
    server.RequestHandlerClass = HubHandler
    server.files = {path.name: path.read_bytes() for path in tiny_preset.iterdir()}
    address = f"http://127.0.0.1:{server.server_port}"
    for name, value in (("HF_HUB_CACHE", str(tmp_path / "hub")), ("ENDPOINT", address)):
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        address + "/{repo_id}/resolve/{revision}/{filename}",
    )
    sentences = [["Dogs", "bark", "."]]
    [expected] = Embedder(tiny_preset).embed(sentences)
    for preset in ("hf://ada/tiny", "hf://ada/tiny@v1"):
        np.testing.assert_array_equal(Embedder(preset).embed(sentences)[0], expected)
    with pytest.raises(OSError, match=r"hf://user/model@v1. Received: hf://ada/no .*hf auth login"):
        download("hf://ada/no")
    with pytest.raises(OSError, match=r"Received: hf://ada/tiny@silent .*disconnected without"):
        download("hf://ada/tiny@silent")
    for wrong in ("hf://ada", "hf://a/b/c"):
        with pytest.raises(ValueError, match=f"hf://user/model@v1. Received: '{wrong}'"):
            download(wrong)
    # A cached model needs no network.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert (download("hf://ada/tiny") / "options.json").is_file()
    with pytest.raises(OSError, match="Received: hf://ada/tiny@v2 .*outgoing traffic has been dis"):
        download("hf://ada/tiny@v2")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        ImportError,
        match=r"hf://ada/tiny needs huggingface_hub. .*: pip install -e .\.\[hub\]",
    ):
        download("hf://ada/tiny")
