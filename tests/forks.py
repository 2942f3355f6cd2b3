"""Run functions in forked processes, and kill some of them.

The parent imports the backend once, and has started no thread of it when it forks.
"""

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable


def run_in_fork(
    work: Callable[[], int | None],
    is_due: Callable[[], bool] | None = None,
    linger: float = 0.0,
) -> int:
    """Run ``work`` in a forked process, and return the exit status.

    ``work`` returns its exit status or None. With ``is_due``, the process gets SIGKILL at most
    ``linger`` seconds after ``is_due()`` returns True.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = work() or 0
        except BaseException:  # The child must not go on with the tests of its parent.
            traceback.print_exc()
        finally:
            os._exit(status)
    if is_due:
        while not is_due():
            if os.waitpid(child, os.WNOHANG)[0]:
                sys.exit("the process ended before it was killed")
            time.sleep(0.005)
        time.sleep(random.uniform(0, linger))
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
