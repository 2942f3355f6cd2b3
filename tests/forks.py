"""Work in forked processes, some of which are killed.

A process that is not yet busy forks them, so that the backend is imported once.
"""

import os
import random
import signal
import sys
import time


def run_in_fork(work, is_due=None, linger=0.0):
    """Return the exit status of ``work``, which returns its own or None, in a process of its own.

    If ``is_due`` is given, SIGKILL comes up to ``linger`` seconds after it returns True.
    """
    child = os.fork()
    if child == 0:
        os._exit(work() or 0)
    if is_due:
        while not is_due():
            if os.waitpid(child, os.WNOHANG)[0]:
                sys.exit("ended by itself")
            time.sleep(0.005)
        time.sleep(random.uniform(0, linger))
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
