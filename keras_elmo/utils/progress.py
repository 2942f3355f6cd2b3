"""Progress bars on stderr."""

import sys
from typing import Any

import tqdm


def progress_bar(progress: bool | None, **kwargs: Any) -> tqdm.tqdm:
    """Return a progress bar; one that is not shown if the process has no stderr.

    Args:
        progress: bool or None. Whether to show the bar. None shows it on a terminal.
        **kwargs: Arguments of ``tqdm.tqdm``.
    """
    if sys.stderr is None:
        progress = False
    return tqdm.tqdm(disable=None if progress is None else not progress, **kwargs)
