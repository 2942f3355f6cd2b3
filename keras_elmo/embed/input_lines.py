"""The sentences of an input as lines."""

from collections.abc import Callable, Iterator
from typing import Any

from keras_elmo.text_input import TABLES, read_token_lists
from keras_elmo.text_input import _ending_of as ending_of

__all__ = ["TABLES", "ending_of", "input_lines"]


def input_lines(
    source: Any, column: str | None, tokenize: Callable[[str], list[str]] | None
) -> Iterator[str]:
    """Yield the sentences of ``read_token_lists`` as lines."""
    return map(" ".join, read_token_lists(source, column, tokenize))
