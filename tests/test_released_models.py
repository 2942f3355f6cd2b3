"""Released models: the registry, and downloads from a server on the loopback."""

import dataclasses
import hashlib
import http.server
import io
import json
import os
import re
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from keras_elmo import Embedder
from keras_elmo import released_models as module
from keras_elmo.released_models import cache_folder, download, nearest_names, released_models

OPTIONS = b'{"lstm": {}}'
WEIGHTS = b"\x89HDF\r\n\x1a\n" + bytes(100)


def zipped():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("options.json", OPTIONS)
        archive.writestr("model.hdf5", WEIGHTS)
    return buffer.getvalue()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        kind, _, name = self.path.strip("/").partition("/")
        body = {"options.json": OPTIONS, "weights.hdf5": WEIGHTS, "model.zip": zipped()}[name]
        if kind == "missing":
            return self.send_error(404)
        if kind == "login":
            body = b"<!DOCTYPE html><title>Sign in</title>"
        if kind == "other":
            body = body[:-1] + b"\x07"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) + 10 * (kind == "truncated")))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def model(server, monkeypatch):
    """Register a model of two files, each with the mirrors of some kinds."""

    def register(*kinds, files=("options.json", "weights.hdf5"), **known):
        address = f"http://127.0.0.1:{server.server_port}"
        rows = [
            {"file": file, "urls": [f"{address}/{kind}/{file}" for kind in kinds], **known}
            for file in files
        ]
        first = next(iter(released_models().values()))
        tiny = dataclasses.replace(first, name="tiny_en", files=tuple(rows))
        monkeypatch.setattr(module, "released_models", lambda: {"tiny_en": tiny})
        return tiny

    return register


def leftovers():
    return sorted(p.name for p in cache_folder().iterdir() if p.name != "digests.json")


def test_files_are_downloaded_once(model, server, capsys):
    tiny = model("good")
    path = download("tiny_en")
    printed = capsys.readouterr()
    assert "Downloading" in printed.err and not printed.out  # stdout is for results, as JSON
    assert path == tiny.folder and tiny.is_downloaded
    assert (path / "options.json").read_bytes() == OPTIONS
    assert (path / "weights.hdf5").read_bytes() == WEIGHTS
    assert leftovers() == ["tiny_en"]
    server.requests.clear()
    assert download("tiny_en") == path and server.requests == []


def test_an_archive_is_a_path_itself(model):
    tiny = model("good", files=["model.zip"])
    assert download("tiny_en") == tiny.folder / "model.zip"


def test_mirrors_are_tried_in_order(model, server):
    model("missing", "truncated", "login", "good")
    download("tiny_en")
    assert [path.split("/")[1] for path in server.requests if "options" in path] == [
        "missing", "truncated", "login", "good",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "kind, known, message",
    [
        ("missing", {}, "404"),
        ("truncated", {}, "(retrieval incomplete|IncompleteRead|got only)"),
        ("login", {}, "received a web page"),
        ("good", {"bytes": 7}, r"expected 7 bytes, received 12"),
        ("good", {"sha256": "00"}, "expected sha256 00, received [0-9a-f]{64}"),
        ("good", {"md5": "00"}, "expected md5 00, received [0-9a-f]{32}"),
    ],
)
def test_faults(model, kind, known, message):
    tiny = model(kind, **known)
    with pytest.raises(OSError, match=message) as caught:
        download("tiny_en")
    expected = rf"No mirror of tiny_en gave options.json \(.*\). Received: http.*/{kind}/options"
    assert re.search(expected, str(caught.value))
    assert f"put it into {tiny.folder}" in str(caught.value)
    assert leftovers() == []


def test_an_error_says_that_an_address_was_guessed(model, monkeypatch):
    page = "http://hdl.handle.net/1"
    tiny = dataclasses.replace(model("missing"), guessed=True, page=page)
    monkeypatch.setattr(module, "released_models", lambda: {"tiny_en": tiny})
    message = "address was guessed .* fetch the file by hand from http://hdl.handle.net/1 and put"
    with pytest.raises(OSError, match=message):
        download("tiny_en")


def test_no_network(model, server):
    tiny = model("good")
    server.shutdown()
    server.server_close()
    with pytest.raises(OSError, match="No mirror of tiny_en gave options.json"):
        download("tiny_en")
    # Files that were fetched by hand are enough.
    tiny.folder.mkdir(parents=True)
    (tiny.folder / "options.json").write_bytes(OPTIONS)
    (tiny.folder / "weights.hdf5").write_bytes(WEIGHTS)
    assert download("tiny_en") == tiny.folder


def test_a_file_put_there_by_hand_is_checked_and_kept(model, server, tmp_path):
    tiny = model("good", files=["options.json"], bytes=len(OPTIONS))
    (tmp_path / "large_disk").mkdir()
    tiny.folder.parent.mkdir()
    tiny.folder.symlink_to(tmp_path / "large_disk")
    (tiny.folder / "vocab.txt").write_text("also by hand")
    (tiny.folder / "options.json").write_bytes(b"<html>")
    with pytest.raises(OSError, match="tiny_en has a file that is not the expected one"):
        download("tiny_en")
    (tiny.folder / "options.json").write_bytes(OPTIONS)
    download("tiny_en")
    assert server.requests == []
    assert {x.name for x in (tmp_path / "large_disk").iterdir()} == {"options.json", "vocab.txt"}
    (cache_folder() / "digests.json").write_text("")
    with pytest.raises(ValueError, match="Digest file .*digests.json is not JSON"):
        download("tiny_en")


def test_later_downloads_are_compared_with_the_first(model):
    tiny = model("good")
    download("tiny_en")
    for file in tiny.files:
        os.remove(tiny.folder / file["file"])
    model("other", files=["weights.hdf5"])
    for _ in range(2):  # the refused file must not stay in the cache
        with pytest.raises(OSError, match="downloaded before. Received: other content in weights"):
            download("tiny_en")
    digests = json.loads((cache_folder() / "digests.json").read_text())
    assert set(digests["tiny_en"]) == {"options.json", "weights.hdf5"}


def test_downloads_at_the_same_time_keep_all_digests(model):
    tiny, names = model("good"), [f"model_{i}" for i in range(16)]
    path = download("tiny_en") / "options.json"

    def record(name):
        module._compare_digests(dataclasses.replace(tiny, name=name), {"options.json": path})

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(record, names))
    digests = json.loads((cache_folder() / "digests.json").read_text())
    assert digests.keys() == {"tiny_en", *names} and leftovers() == ["tiny_en"]


def test_names():
    with pytest.raises(ValueError, match="Received: 'AllenNLP_orignal_en'. Similar.*allennlp_orig"):
        download("AllenNLP_orignal_en")
    with pytest.raises(ValueError, match="cannot be fetched by a program.*https://figshare"):
        download("olivetti_materials_en")
    assert nearest_names("ELMO_SMALL_EN", ["elmo_small_en", "elmo_mini_en"])[0] == "elmo_small_en"


def test_the_registry_is_complete():
    for name, model in released_models().items():
        assert re.fullmatch(r"[a-z0-9_.]+", name) and model.language and model.licence
        assert model.files or model.page
        for file in model.files:
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
        match=r"hf://ada/tiny needs huggingface_hub. .*: pip install 'keras-elmo\[hub\]'",
    ):
        download("hf://ada/tiny")
