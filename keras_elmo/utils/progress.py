"""Progress bars on stderr."""

from typing import Any

import tqdm


def progress_bar(progress: bool | None, **kwargs: Any) -> tqdm.tqdm:
    """Return a progress bar. If ``progress`` is None, it is shown on a terminal only."""
    return tqdm.tqdm(disable=None if progress is None else not progress, **kwargs)
