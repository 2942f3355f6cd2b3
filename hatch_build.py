"""Fill in what the metadata of the package takes from the address of the repository."""

import os
import pathlib
import re

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^]]*)\]\((?!https?:|#)([^)]+)\)")


def long_description(text: str, repository: str) -> str:
    """Return README with links that work elsewhere. Without an address, there are no links."""

    def absolute(link: re.Match) -> str:
        mark, label, path = link.groups()
        if not repository:
            return "" if mark else label
        return f"{mark}[{label}]({repository}/{'raw' if mark else 'blob'}/HEAD/{path})"

    return LINK.sub(absolute, text)


class RepositoryHook(MetadataHookInterface):
    """Set ``readme`` and ``urls``. The variable REPOSITORY has priority over pyproject.toml."""

    def update(self, metadata: dict) -> None:
        repository = (os.environ.get("REPOSITORY") or self.config["repository"]).rstrip("/")
        text = pathlib.Path(self.root, "README.md").read_text("utf-8")
        text = long_description(text, repository)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        if repository:
            metadata["urls"] = {
                "Repository": repository,
                "Issues": f"{repository}/issues",
                "Changelog": f"{repository}/blob/HEAD/CHANGELOG.md",
            }
