"""The demo page computes in the browser what the package computes."""

import html
import json
import pathlib
import re
import runpy
import shutil
import subprocess
import sys
import urllib.parse

import keras
import numpy as np
import pytest

import keras_elmo
from keras_elmo.pretraining import Scorer, read_language_model

pytestmark = pytest.mark.extended

DEMO = pathlib.Path(__file__).parents[1] / "docs" / "demo"
CHROMIUM = shutil.which("chromium")
HARD_TEXT = "“Can’t he (Mr. Kim) pay $5.50?” I don't know, 'tis -- gonna be 3,000... Naïve 배 😀!"
CONFIG = """
site_name: demo
theme: {name: material, font: false}
markdown_extensions: [attr_list, pymdownx.superfences]
exclude_docs: "*.py"
"""


def build_site(folder):
    """Build the demo alone as a site, and return the folder of the site."""
    shutil.copytree(DEMO, folder / "docs" / "demo", ignore=shutil.ignore_patterns("files"))
    build = runpy.run_path(str(DEMO / "build.py"))["build"]
    if not build(folder / "docs" / "demo" / "files"):
        pytest.skip("npm is missing or cannot download ONNX Runtime Web")
    (folder / "mkdocs.yml").write_text(CONFIG)
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "site"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    if CHROMIUM is None or shutil.which("npm") is None:
        pytest.skip("the demo needs chromium and npm")
    for module in ("onnx", "material"):
        pytest.importorskip(module)
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def found(folder):
    """The numbers that the page wrote."""
    dump_page = runpy.run_path(str(DEMO.parent / "check_site.py"))["dump_page"]
    address = f"demo/?{urllib.parse.urlencode({'check': HARD_TEXT})}"
    page = dump_page(CHROMIUM, build_site(folder), address, "--virtual-time-budget=60000")
    written = re.search(r'id="elmo-check">(.*?)</script>', page, re.DOTALL)
    status = re.search(r'id="elmo-status"[^>]*>([^<]*)', page)
    assert written, f"the page did not finish: {status and html.unescape(status[1])}"
    numbers = json.loads(written[1])
    # The page asks no other server.
    assert [host.split(":")[0] for host in numbers["hosts"]] == ["127.0.0.1"]
    assert numbers["status"] == "The biLM runs."
    return numbers


@pytest.fixture(scope="module")
def expected(found):
    """The layers of the sentences of the page."""
    embedder = keras_elmo.Embedder("elmo_mini_en", engine="keras")
    assert sum(found["tokenized"], []) == embedder.tokenize(HARD_TEXT)
    assert len(found["tokenized"]) > 1
    return embedder.embed([sentence["tokens"] for sentence in found["sentences"]])


def cosines(a, b):
    return a @ b.T / np.linalg.norm(a) / np.linalg.norm(b, axis=1)


def test_layers(found, expected):
    for sentence, layers in zip(found["sentences"], expected, strict=True):
        for computed, layer in zip(np.array(sentence["layers"]), layers, strict=True):
            assert np.linalg.norm(computed - layer) < 0.025 * np.linalg.norm(layer)


def test_similarities(found, expected):
    """The sliders are at 0 and 1 first, and then where the page moved them."""
    b, k = found["chosen"]
    for name, scalars, gamma in (("plain", [0, 0, 0], 1), ("mix", [1, -0.5, 0.3], 2)):
        mix = keras_elmo.ScalarMix()
        mix.build((None, None, 3, 256))
        mix.scalars.assign(scalars)
        mix.gamma.assign(gamma)
        stacks = [
            [*layers, keras.ops.convert_to_numpy(mix(layers.swapaxes(0, 1)[None]))[0]]
            for layers in expected
        ]
        for computed, stack in zip(found[name], stacks, strict=True):
            chosen = [vectors[k] for vectors in stacks[b]]
            exact = np.stack([cosines(a, x) for a, x in zip(chosen, stack, strict=True)], axis=1)
            np.testing.assert_allclose(computed, exact, atol=0.01)


def test_predictions(found, folder):
    tokens = found["sentences"][0]["tokens"]
    scorer = Scorer(*read_language_model("elmo_mini_en"))
    words = (folder / "docs" / "demo" / "files" / "words.json").read_text("utf-8")
    frequent = set(json.loads(words))
    # The first and the last place read the state of a boundary token.
    for k in (0, 4, len(tokens) - 1):
        exact = scorer.substitutes(tokens, k, top=40000)
        for name, guesses in zip(("forward", "backward"), found["next"][k], strict=True):
            table = {word: p for word, p in exact[name] if word in frequent}
            total = sum(table.values())
            for word, p in guesses:
                assert abs(p - table[word] / total) < 0.02
