"""Released models: the registry, and downloads from a server on the loopback."""

import http.server
import re
import threading
import time

import pytest

from keras_elmo import Embedder
from keras_elmo import released_models as module
from keras_elmo.released_models import cache_folder, download, is_downloaded, released_models
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


@pytest.fixture
def server(monkeypatch, tmp_path, tiny_preset):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.setattr(module, "_TIMEOUT", 0.5)
    files = {name: (tiny_preset / name).read_bytes() for name in NAMES}
    archive = tarred(tmp_path / "model.tar.gz", files)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests, server.files = [], files | {"model.tar.gz": archive.read_bytes()}
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def model(server, monkeypatch):
    """Register a model, each file with the mirrors of some kinds."""

    def register(*kinds, files=NAMES, **known):
        address = f"http://127.0.0.1:{server.server_port}"
        rows = [
            {"file": file, "urls": [f"{address}/{kind}/{file}" for kind in kinds], **known}
            for file in files
        ]
        tiny = {"name": "tiny_en", "files": rows, "page": "http://hdl.handle.net/1"}
        monkeypatch.setattr(module, "released_models", lambda: {"tiny_en": tiny})
        return cache_folder() / "tiny_en"

    return register


def leftovers():
    return sorted(path.name for path in cache_folder().rglob("*") if path.is_file())


def test_files_are_downloaded_once(model, server, capsys):
    folder = model("good")
    path = download("tiny_en")
    assert not capsys.readouterr().out  # stdout is for results, as JSON
    assert path == folder and is_downloaded(module.released_models()["tiny_en"])
    assert {p.name: p.read_bytes() for p in path.iterdir()} == {n: server.files[n] for n in NAMES}
    server.requests.clear()
    assert download("tiny_en") == path and server.requests == []
    assert Embedder("tiny_en").embed([["a"]])[0].shape[1] == 1
    model("good", files=["model.tar.gz"])  # an archive is a path itself
    assert download("tiny_en") == folder / "model.tar.gz"


def test_mirrors_are_tried_in_order(model, server):
    kinds = ["missing", "stalled", "short", "cut", "login", "good"]
    model(*kinds, files=["weights.hdf5"])
    path = download("tiny_en")
    assert [path.split("/")[1] for path in server.requests] == kinds
    assert path.read_bytes() == server.files["weights.hdf5"] and leftovers() == ["weights.hdf5"]


@pytest.mark.parametrize(
    ("file", "kind", "known", "message"),
    [
        ("options.json", "missing", {}, "404"),
        ("weights.hdf5", "stalled", {}, "timed out"),
        ("weights.hdf5", "short", {}, r"expected \d+ bytes, received \d+"),
        ("weights.hdf5", "cut", {}, "is damaged"),
        ("options.json", "login", {}, "is not JSON"),
        ("model.tar.gz", "login", {}, "cannot be unpacked"),
        ("weights.hdf5", "long", {"bytes": 7}, r"expected 7 bytes, received \d+"),
        ("weights.hdf5", "good", {"sha256": "00"}, "expected sha256 00, received [0-9a-f]{64}"),
        ("weights.hdf5", "good", {"md5": "00"}, "expected md5 00, received [0-9a-f]{32}"),
    ],
)
def test_faults(model, file, kind, known, message):
    folder = model(kind, files=[file], **known)
    received = rf"gave {file} \(.*\). Received: http.*/{kind}/{file} \(.*{message}.*\). Try"
    advice = f"by hand from http://hdl.handle.net/1 and put it into {folder}"
    with pytest.raises(OSError, match=f"No mirror of tiny_en {received}.*{advice}"):
        download("tiny_en")
    assert leftovers() == []


def test_files_that_were_fetched_by_hand(model, server, tiny_preset, tmp_path, monkeypatch):
    """They need no network, and no place to write: the cache can belong to someone else."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KERAS_HOME", "~/home")
    folder = model("missing")
    assert folder == tmp_path / "home" / "keras_elmo" / "tiny_en"
    folder.parent.mkdir(parents=True)
    folder.symlink_to(tiny_preset)
    monkeypatch.setattr(module, "atomic_write", None)
    assert download("tiny_en") == folder and server.requests == []


def test_names():
    with pytest.raises(ValueError, match="Received: 'AllenNLP_orignal_en'. Similar.*allennlp_orig"):
        download("AllenNLP_orignal_en")
    with pytest.raises(ValueError, match="cannot be fetched by a program.*https://figshare"):
        download("olivetti_materials_en")
    assert download("elmo_mini_en") == module.bundled()["elmo_mini_en"]


def test_the_registry_is_complete():
    for name, model in released_models().items():
        assert re.fullmatch(r"[a-z0-9_.]+", name) and model["language"] and model["licence"]
        assert model["files"] or model["page"]
        for file in model["files"]:
            assert file["file"].endswith((".json", ".hdf5", ".zip", ".tar.gz", ".tar.bz2"))
            assert "/" not in file["file"] and file["urls"]
            assert all(re.match("https?://", url) for url in file["urls"])
            assert len(file.get("sha256", "0" * 64)) == 64 and len(file.get("md5", "0" * 32)) == 32
