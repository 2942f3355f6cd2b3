"""The code of README and of the pages in docs runs, and their commands have the flags given."""

import pathlib
import re
import shlex

import keras
import numpy as np
import pytest

import keras_elmo
from keras_elmo.cli import make_parser

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = {str(p.relative_to(ROOT)): p.read_text("utf-8") for p in ROOT.glob("docs/**/*.md")}


def blocks(language, text=README):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run_blocks(text, page, names):
    for block in blocks("python", text):
        exec(compile(block, page, "exec"), names)  # noqa: S102


def test_the_python_of_readme_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("sentences.txt").write_text("The bank of the river .\nIt closed at five .\n")
    names = {}
    assert len(blocks("python")) >= 4
    run_blocks(README, "README.md", names)
    [scores] = names["log_probabilities"]
    assert scores.shape == (2, 4) and (scores < 0).all()
    assert names["arrays"][0].shape[0] == 3
    assert isinstance(names["model"], keras.Model)
    assert np.isfinite(names["vectors"]).all()


def test_the_reference_has_every_public_name():
    found = set(re.findall(r"^::: (\S+)$", PAGES["docs/reference.md"], re.MULTILINE))
    assert {f"keras_elmo.{name}" for name in keras_elmo.__all__} <= found


# The others speak of a cluster, and of files from elsewhere.
RUNNING = [page for page in PAGES if page.startswith(("docs/guide", "docs/index", "docs/equ"))]


@pytest.mark.parametrize("page", [page for page in RUNNING if blocks("python", PAGES[page])])
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    run_blocks(PAGES[page], page, names)
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


def test_readme_tells_where_every_module_is():
    package = ROOT / "keras_elmo"
    unmentioned = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if path.name != "__init__.py" and path.name not in README
    ]
    assert not unmentioned


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
