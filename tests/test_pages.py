"""The code of README and of the pages runs, and the command line accepts their commands."""

import contextlib
import io
import os
import pathlib
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest

import keras_elmo
from keras_elmo.cli import make_parser
from tests import foreign_files
from tests.conftest import make_arrays, make_config, write_preset
from tests.test_presets import tarred, zipped

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = {str(p.relative_to(ROOT)): p.read_text("utf-8") for p in ROOT.glob("docs/**/*.md")}


def blocks(language, text=README):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run_python(code, page, names):
    """Run a block of a page, and return what it prints. Skip the rest if a library is missing."""
    for library in re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE):
        pytest.importorskip(library)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, page, "exec"), names)  # noqa: S102
    return printed.getvalue()


def run_program(command):
    words = shlex.split(command)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    program = [sys.executable, *words[1:]]
    return subprocess.run(
        program, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def without_decimals(text):
    return re.sub(r"\d+\.\d+(e-?\d+)?", "0.0", " ".join(text.split()))


FENCE = re.compile(r'^```(\w*)(?: title="(\S+)")?\n(.*?)^```\n(\n```\n(.*?)^```\n)?', re.M | re.S)


def run_page(text, page, folder, monkeypatch):
    """Run the Python of a page, from top to bottom in one folder, and return its variables.

    A block with a title is a file: commands and other blocks can run it. If a block without a
    language follows, it must be the output; the digits of decimal fractions may differ.
    """
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    names = {}
    for language, title, code, _, output in FENCE.findall(text):
        printed = None
        if title:
            (folder / title).write_text(code, "utf-8")
        elif language == "python":
            printed = run_python(code, page, names)
        elif language == "bash" and (folder / code.split()[1]).is_file():
            printed = run_program(code)
        if output and printed is not None:
            assert without_decimals(printed) == without_decimals(output)
    return names


def test_the_python_of_readme_runs_from_top_to_bottom(tmp_path, monkeypatch):
    names = run_page(README, "README.md", tmp_path, monkeypatch)
    assert [array.shape for array in names["arrays"]] == [(3, 5, 512), (3, 6, 512)]
    assert isinstance(names["model"], keras.Model)


def test_readme_is_short():
    assert len(README.split()) <= 900


def test_the_links_of_readme_exist():
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", README)
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_the_reference_has_every_public_name():
    found = set(re.findall(r"^::: (\S+)$", PAGES["docs/reference.md"], re.MULTILINE))
    assert {f"keras_elmo.{name}" for name in keras_elmo.__all__} <= found


# The other pages need a cluster, or files of other projects.
RUNS = ("docs/guide", "docs/index", "docs/equations", "docs/engines", "docs/recipes", "docs/coming_from")
RUNNING = [page for page in PAGES if page.startswith(RUNS)]


def write_foreign_models(folder):
    """Write tiny models under the names of docs/coming_from.md."""
    pytest.importorskip("torch")
    config = make_config(max_characters_per_token=50)
    arrays = make_arrays(config)
    options, weights = write_preset(folder, config, arrays)
    files = {"options.json": options.read_bytes(), "model.hdf5": weights.read_bytes()}
    zipped(folder / "211.zip", files)
    checkpoint = folder / "training" / "model.ckpt-400"
    foreign_files.write_checkpoint(checkpoint, foreign_files.checkpoint_variables(arrays))
    (folder / "training" / "options.json").write_bytes(files["options.json"])
    mix = {"aggregation/weights": np.zeros(3, "float32"), "aggregation/scaling": np.float32(2)}
    variables = foreign_files.hub_variables(arrays) | mix
    foreign_files.write_checkpoint(folder / "elmo_3" / "variables" / "variables", variables)
    (folder / "elmo_3" / "saved_model.pb").write_bytes(b"")
    tensors = foreign_files.allennlp_tensors(arrays, mixes=[((0.1, -0.2, 0.3), 1.5)])
    run = foreign_files.write_allennlp(folder / "run", tensors)
    tarred(folder / "model.tar.gz", {path.name: path.read_bytes() for path in run.iterdir()})
    characters = "abcdefghijklmnopqrstuvwxyzTA."
    rows = {"char_embed": arrays["char_embed"][: len(characters) + 6]}
    foreign_files.write_many_langs(folder / "zhs.model", config, arrays | rows, characters)


@pytest.mark.parametrize("page", [page for page in RUNNING if blocks("python", PAGES[page])])
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    if page == "docs/coming_from.md":
        write_foreign_models(tmp_path)
    names = run_page(PAGES[page], page, tmp_path, monkeypatch)
    if page == "docs/index.md":
        assert names["same"] and names["apart"] > 0.1
    if page == "docs/guide/classify.md":
        np.testing.assert_allclose(names["probabilities"].sum(), 1, atol=1e-5)


COMMANDS = [
    command
    for text in (README, *PAGES.values())
    for block in blocks("bash", text)
    for command in re.split(r"\n|&&|\|", block.replace("\\\n", " "))
    if re.search(r"(^|/|\s)keras-elmo\s", command)
]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_are_understood(command):
    words = shlex.split(command, comments=True)
    arguments = words[next(i for i, w in enumerate(words) if w.endswith("keras-elmo")) + 1 :]
    assert make_parser().parse_args(arguments).run


NOTEBOOKS = sorted(ROOT.glob("docs/notebooks/*.ipynb"))


def shown(notebook):
    """What the cells of code give, but for numbers and pictures: text, or the kind of a value."""
    outputs = [x.outputs for x in notebook.cells if x.cell_type == "code"]
    texts = [
        [
            x["text"] if "text" in x else sorted(x["data"])
            for x in of_cell
            if x.get("name") != "stderr"
        ]
        for of_cell in outputs
    ]
    return re.sub(r"\s*\d+(\.\d+)?", " 0", str(texts))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_gives_what_it_shows(path, tmp_path):
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(path, 4)
    stored = shown(notebook)
    place = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, kernel_name="python3", resources=place).execute()
    assert shown(notebook) == stored
    # What is stored warns of nothing.
    assert "stderr" not in path.read_text("utf-8")
