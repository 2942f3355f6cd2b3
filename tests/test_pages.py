"""The code of README and of the pages runs, and the command line accepts their commands."""

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
    names = {}
    run_blocks(README, "README.md", names)
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
RUNS = ("docs/guide", "docs/index", "docs/equations", "docs/engines")
RUNNING = [page for page in PAGES if page.startswith(RUNS)]


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


NOTEBOOKS = sorted(ROOT.glob("docs/notebooks/*.ipynb"))


def shown(cells):
    """What the cells of code give, but for numbers and pictures: text, or the kind of a value."""
    outputs = [x.outputs for x in cells if x.cell_type == "code"]
    texts = [
        [
            x["text"] if "text" in x else sorted(x["data"])
            for x in of_cell
            if x.get("name") != "stderr"
        ]
        for of_cell in outputs
    ]
    return re.sub(r"\s*\d+(\.\d+)?", " 0", str(texts))


# Each notebook begins without names of the one before, in its folder. TensorFlow would warn that it
# traces again for the layers of the next notebook.
BEGIN = """
%reset -f
__import__("keras").backend.clear_session()
__import__("tensorflow").get_logger().setLevel("ERROR")
__import__("os").chdir({!r})
"""


def test_a_notebook_gives_what_it_shows(tmp_path):
    """One kernel runs all of them: its start takes longer than most of the cells."""
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    nbformat = pytest.importorskip("nbformat")
    notebooks = {path.stem: nbformat.read(path, 4) for path in NOTEBOOKS}
    stored = {name: shown(notebook.cells) for name, notebook in notebooks.items()}
    together = next(iter(notebooks.values())).copy()
    together.cells = []
    for name, notebook in notebooks.items():
        (tmp_path / name).mkdir()
        begin = nbformat.v4.new_code_cell(BEGIN.format(str(tmp_path / name)))
        together.cells += [begin, *notebook.cells]
    nbclient.NotebookClient(together, kernel_name="python3").execute()
    for path in NOTEBOOKS:
        assert shown(notebooks[path.stem].cells) == stored[path.stem]
        # What is stored warns of nothing.
        assert "stderr" not in path.read_text("utf-8")
