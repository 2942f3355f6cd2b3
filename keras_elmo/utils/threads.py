"""Run a function in a thread."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


def run_in_thread(function: Callable, *arguments: Any) -> Future:
    """Start a function in a new thread, and return the future of its result.

    An executor would refuse the work of other threads once the main thread has ended.

    Examples:
        >>> run_in_thread(pow, 2, 10).result()
        1024
    """
    future: Future = Future()

    def work() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:  # result raises it; without it, result would wait forever
            future.set_exception(error)

    threading.Thread(target=work).start()
    return future
