"""Write all pages of the site as plain Markdown, for any generator of static sites.

    python docs/make_pages.py && mkdocs build

Copies docs/ to build/docs, adds the model cards and the notebooks as Markdown, and MathJax from
npm. Without npm the equations are shown as TeX.
"""

import pathlib
import re
import shutil

import nbconvert
from npm import read_package

ROOT = pathlib.Path(__file__).parents[1]
PAGES = ROOT / "build" / "docs"
MATHJAX = "mathjax@3.2.2"
MATHJAX_SHA512 = (
    "Bt+SSVU8eBG27zChVewOicYs7Xsdt40qm4+UpHyX7k0/O9NliPc+x77k1/FEsPsjKPZGJvtRZM1vO+geW0OhGw=="
)


def add_model_cards() -> None:
    cards = []
    for folder in sorted(ROOT.glob("weights/*/")):
        target = PAGES / "weights" / folder.name
        target.mkdir(parents=True)
        for file in [*folder.glob("*.png"), *folder.glob("TRAINING.md")]:
            shutil.copy(file, target)
        card = (folder / "README.md").read_text("utf-8")
        # The YAML at the start is for the Hugging Face Hub.
        card = re.sub(r"\A---\n.*?\n---\n", "", card, flags=re.DOTALL)
        cards.append(re.sub(r"\]\((\w+\.(?:png|md))\)", rf"](weights/{folder.name}/\1)", card))
    (PAGES / "model_cards.md").write_text("\n".join(cards), "utf-8")


def add_notebooks() -> None:
    for notebook in PAGES.glob("notebooks/*.ipynb"):
        text, resources = nbconvert.MarkdownExporter().from_filename(str(notebook))
        notebook.with_suffix(".md").write_text(text, "utf-8")
        for name, content in resources["outputs"].items():
            (notebook.parent / name).write_bytes(content)
        notebook.unlink()


def rewrite_links() -> None:
    """Let links to notebooks and to model cards lead to their pages."""
    for page in PAGES.rglob("*.md"):
        text = re.sub(r"(\]\([\w./]+)\.ipynb\)", r"\1.md)", page.read_text("utf-8"))
        card = r"\]\(((?:\.\./)*)\.\./weights/\w+/README\.md\)"
        page.write_text(re.sub(card, r"](\1model_cards.md)", text), "utf-8")


def add_mathjax() -> None:
    if not shutil.which("npm"):
        print("npm is not installed: the site will show equations as TeX")
        return
    [content] = read_package(MATHJAX, MATHJAX_SHA512, ["es5/tex-svg.js"])
    (PAGES / "mathjax.js").write_bytes(content)


if __name__ == "__main__":
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES, ignore=shutil.ignore_patterns("*.py", "overrides"))
    add_model_cards()
    add_notebooks()
    rewrite_links()
    add_mathjax()
