"""Run the scripts of the examples in this process, on small files that they read."""

import contextlib
import io
import os
import runpy
import sys
from unittest import mock

from tests.conftest import EXAMPLES

EXPERIMENTS = EXAMPLES / "experiments"

TREES = {
    "train": """
(4 (2 An) (4 (4 absolute) (2 (2 ``) (2 (3 delight) (2 '')))))

(0 (2 -LRB-) (0 (0 (2 Not) (3 delight)) (2 -RRB-)))
(3 (2 either\\/or) (3 (2 is) (3 fine)))
""",
    "dev": "(4 (2 An) (4 delight))\n" + 2 * "(1 (1 Not) (2 (2 fine) (2 at)))\n",
    "test": "(3 fine)\n(0 (2 (2 Not) (3 unseen)) (2 (2 at) (2 (2 all) (2 !))))\n",
}

COLUMNS = {  # the same entities, two of them side by side
    "IOB1": "I-PER I-PER O I-LOC B-LOC | O I-ORG I-PER O",
    "IOB2": "B-PER I-PER O B-LOC B-LOC | O B-ORG B-PER O",
    "BIOES": "B-PER E-PER O S-LOC S-LOC | O S-ORG S-PER O",
}
TOKENS = "Ada Lovelace saw London Paris | The EU's Smith left\u2026"


def run(path, *arguments):
    """Run a script as the command line does, and return what it prints."""
    given = [str(path), *map(str, arguments)]
    with (
        mock.patch.object(sys, "argv", given),
        mock.patch.object(sys, "path", [str(path.parent), *sys.path]),
        mock.patch.dict(os.environ, COLUMNS="200"),  # argparse breaks no line
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        runpy.run_path(str(path), run_name="__main__")
    return printed.getvalue()


def write_trees(folder):
    folder.mkdir()
    for name, text in TREES.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


def write_columns(path, scheme, line="{} {}\n"):
    sentences = (text.split(" | ") for text in (TOKENS, COLUMNS[scheme]))
    text = "".join(
        "".join(line.format(*pair) for pair in zip(*map(str.split, sentence))) + "\n"
        for sentence in zip(*sentences)
    )
    path.write_text("-DOCSTART- O\n\n\n" + text, encoding="utf-8")
    return path
