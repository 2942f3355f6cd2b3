"""Progress bars on stderr."""

from typing import Any

import tqdm


def progress_bar(progress: bool | None, **kwargs: Any) -> tqdm.tqdm:
    """Return a progress bar.

    Args:
        progress: bool or None. Whether to show the bar. None shows it on a terminal.
        **kwargs: Arguments of ``tqdm.tqdm``.
    """
    return tqdm.tqdm(disable=None if progress is None else not progress, **kwargs)
