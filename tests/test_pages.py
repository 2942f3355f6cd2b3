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

pytestmark = pytest.mark.extended

ROOT = pathlib.Path(__file__).parents[1]
FILES = ROOT / "README.md", *ROOT.glob("docs/**/*.md")
PAGES = {str(p.relative_to(ROOT)): p.read_text("utf-8") for p in FILES}


def blocks(language, text):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def run_python(code, page, names):
    """Run a block of a page, and return what it prints. Skip the rest if a library is missing."""
    for library in re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE):
        pytest.importorskip(library)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(code, page, "exec"), names)  # noqa: S102
    return printed.getvalue()


def run_program(command):
    """Run a command such as ``python ask.py "A text."``, and return what it prints."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, *shlex.split(command)[1:]]
    return subprocess.check_output(program, env=environment, text=True)


def without_decimals(text):
    # NumPy pads the numbers of an array to one width.
    return re.sub(r"\d+\.\d+(e-?\d+)?", "0.0", " ".join(text.split())).replace(" ]", "]")


# A block of a page: its language, its title, its text, and the block of output after it.
BLOCK = re.compile(
    r'^```(\w+)(?: title="(\S+)")?\n(.*?)^```\n(?:\n```\n(.*?)^```$)?', re.MULTILINE | re.DOTALL
)


def run_page(text, page, folder, monkeypatch):
    """Run the Python of a page, from top to bottom in one folder, and return its variables.

    A Python block with a title is a program in the folder. The commands of the page run it, and
    other blocks import it. Blocks must print the output that the page shows, but for decimals.
    """
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    names = {}
    for language, title, code, output in BLOCK.findall(text):
        if title:
            (folder / title).write_text(code, "utf-8")
            continue
        if language == "python":
            printed = run_python(code, page, names)
        elif code.startswith("python ") and (folder / code.split()[1]).is_file():
            printed = run_program(code)
        else:
            continue
        if output:
            assert without_decimals(printed) == without_decimals(output)
    return names


def test_the_links_of_readme_exist():
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", PAGES["README.md"])
    assert len(links) > 20
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_the_reference_has_every_public_name():
    found = set(re.findall(r"^::: (\S+)$", "\n".join(PAGES.values()), re.MULTILINE))
    assert {f"keras_elmo.{name}" for name in keras_elmo.__all__} <= found


# The other pages need a cluster, or files of other projects.
RUNS = ("README", "demo", "guide", "index", "equations", "recipes", "coming_from")
RUNNING = [page for page in PAGES if page.removeprefix("docs/").startswith(RUNS)]


def write_foreign_models(folder):
    """Write tiny models under the names of docs/coming_from.md."""
    pytest.importorskip("torch")
    config = make_config(max_characters_per_token=50)
    arrays = make_arrays(config)
    options, weights = write_preset(folder, config, arrays)
    files = {"options.json": options.read_bytes(), "model.hdf5": weights.read_bytes()}
    zipped(folder / "211.zip", files)
    foreign_files.write_training(folder / "training", config, arrays, step=400)
    foreign_files.write_hub(folder / "elmo_3", arrays, mix={"weights": [0, 0, 0], "scaling": 2})
    tensors = foreign_files.allennlp_tensors(arrays, mixes=[((0.1, -0.2, 0.3), 1.5)])
    run = foreign_files.write_allennlp(folder / "run", tensors)
    tarred(folder / "model.tar.gz", {path.name: path.read_bytes() for path in run.iterdir()})


def check_text(names):
    """The tokens of the table are those of the tokenizer."""
    rows = re.findall(r"^\| `([^`|]+)` \| `(.*)` \|$", PAGES["docs/guide/text.md"], re.MULTILINE)
    tokenize = keras_elmo.WordTokenizer("penn")
    assert [tokenize(text) for text, _ in rows] == [tokens.split("` `") for _, tokens in rows]


def check_coming_from(names):
    # The second sentence has two tokens and padding.
    expected = names["weighted_sum"].numpy()[1, :2].mean(axis=0)
    np.testing.assert_allclose(names["default"][1], expected, atol=1e-6)
    np.testing.assert_array_equal(names["padded"][1, :2], names["arrays"][1])


def check_serve(names):
    assert np.isfinite(names["empty"]).all()

    def ask(text):
        return names["client"].post("/vectors", json=[text]).json()

    texts = [f"The {word} film." for word in ("first", "second", "third", "last")]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, texts))
    np.testing.assert_allclose(answers, [ask(text) for text in texts], atol=1e-5)


def check_tag(names):
    assert names["scores"].shape == (2, 6, 9)
    mask = names["tagger"](names["tokens"])._keras_mask
    assert keras.ops.convert_to_numpy(mask).sum(1).tolist() == [6, 3]
    ids = keras_elmo.CharacterTokenizer()(names["sentences"])
    words = np.array([[1, 2, 3, 4, 5, 6], [7, 8, 9, 0, 0, 0]])
    # Untrained, the nine tags are about equally probable; the padding counts for nothing.
    loss = names["model"].train_on_batch([ids, words], words - 1)
    assert loss == pytest.approx(4.5 * np.log(9), rel=0.5)


def check_readme(names):
    assert [names["river"].shape, names["money"].shape] == [(3, 9, 256), (3, 8, 256)]


CHECKS = {
    "README.md": check_readme,
    "docs/guide/text.md": check_text,
    "docs/guide/tag.md": check_tag,
    "docs/guide/serve.md": check_serve,
    "docs/coming_from.md": check_coming_from,
}


@pytest.mark.parametrize("page", [page for page in RUNNING if blocks("python", PAGES[page])])
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    if page == "docs/coming_from.md":
        write_foreign_models(tmp_path)
    names = run_page(PAGES[page], page, tmp_path, monkeypatch)
    if check := CHECKS.get(page):
        check(names)


COMMANDS = [
    command
    for text in PAGES.values()
    for block in blocks("bash", text)
    for command in re.split(r"\n|&&|\|", block.replace("\\\n", " "))
    if re.search(r"(^|/|\s)keras-elmo\s", command)
]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_are_understood(command):
    words = shlex.split(command, comments=True)
    arguments = words[next(i for i, w in enumerate(words) if w.endswith("keras-elmo")) + 1 :]
    assert make_parser().parse_args(arguments).run


def shown(cells):
    """Return the outputs of the code cells, without numbers: text, or the kinds of values."""
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


@pytest.mark.parametrize("path", sorted(ROOT.glob("docs/notebooks/*.ipynb")), ids=str)
def test_a_notebook_gives_what_it_shows(path, tmp_path):
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(path, 4)
    stored = shown(notebook.cells)
    resources = {"metadata": {"path": tmp_path}}
    nbclient.NotebookClient(notebook, kernel_name="python3", resources=resources).execute()
    assert shown(notebook.cells) == stored
    assert "stderr" not in path.read_text("utf-8")  # the stored outputs contain no warnings
