"""Progress bars on stderr."""

import sys
from typing import Any

import tqdm


def progress_bar(progress: bool | None, **kwargs: Any) -> tqdm.tqdm:
    """Return a progress bar. If ``progress`` is None, it is shown on a terminal only."""
    if sys.stderr is None:  # a process without a console, such as pythonw
        progress = False
    return tqdm.tqdm(disable=None if progress is None else not progress, **kwargs)
