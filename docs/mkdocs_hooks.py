"""MkDocs hooks: include the model cards, and show the examples of docstrings as code."""

import pathlib
import re

import griffe
from mkdocs.structure.files import File

WEIGHTS = pathlib.Path(__file__).parents[1] / "weights"


def on_files(files, config):
    """Add the pictures and training logs of the presets, which are outside of docs."""
    for path in [*WEIGHTS.glob("*/*.png"), *WEIGHTS.glob("*/TRAINING.md")]:
        name = f"weights/{path.parent.name}/{path.name}"
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, **_):
    """Insert the model cards, with their links relative to docs."""

    def card(match):
        text = (WEIGHTS / match[1] / "README.md").read_text("utf-8")
        return re.sub(r"\]\((\w+\.(?:png|md))\)", rf"](weights/{match[1]}/\1)", text)

    return re.sub(r'^--8<-- "weights/(\w+)/README.md"$', card, markdown, flags=re.MULTILINE)


class FencedExamples(griffe.Extension):
    """Fence the examples of docstrings, because Markdown reads a bare ``>>>`` as a quotation."""

    def on_object(self, *, obj, **_):
        if obj.docstring:
            examples = re.compile(r"^>>> .*(\n.+)*", re.MULTILINE)
            obj.docstring.value = examples.sub(r"```pycon\n\g<0>\n```", obj.docstring.value)
