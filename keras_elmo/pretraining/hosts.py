"""Which processes train together, as their launcher tells them."""

import dataclasses
import itertools
import json
import os
import re

_ADDRESSES, _COUNT = "KERAS_DISTRIBUTION_JOB_ADDRESSES", "KERAS_DISTRIBUTION_NUM_PROCESSES"
# Where launchers tell a process its number; Keras's own variable goes first.
_INDEX = (
    "KERAS_DISTRIBUTION_PROCESS_ID",
    "OMPI_COMM_WORLD_RANK",  # before Slurm's, which under mpirun is that of the launcher
    "PMI_RANK",
    "SLURM_PROCID",
    "JOB_COMPLETION_INDEX",  # of an indexed job of Kubernetes
)
_MPI_COUNTS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_SLURM = ("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_JOB_ID", "SLURM_PROCID")


@dataclasses.dataclass(frozen=True)
class Hosts:
    """The processes of a run, one or more on each host.

    Attributes:
        addresses: ``host:port`` of each process; of the first one alone where the others'
            are not known, which is enough for JAX.
        count: Number of processes.
        index: Number of this one, from 0.
    """

    addresses: tuple[str, ...] = ()
    count: int = 1
    index: int = 0


def find_hosts(environment=None) -> Hosts:
    """Read from environment variables which processes train together.

    The first of these that is there counts: ``TF_CONFIG``;
    ``KERAS_DISTRIBUTION_JOB_ADDRESSES``, with ``KERAS_DISTRIBUTION_NUM_PROCESSES`` if it
    names the first process only, and the number of the process from
    ``KERAS_DISTRIBUTION_PROCESS_ID``, MPI, Slurm or an indexed job of Kubernetes; a step of
    Slurm (``srun``), whose node list gives the addresses, unless ``mpirun`` started more
    processes in it.

    Args:
        environment: Dict of variables; those of the process if None.

    Returns:
        The ``Hosts``; one process if no variable tells of more.

    Raises:
        ValueError: If the variables contradict each other, or an address is missing.

    Example:

    >>> find_hosts({"SLURM_STEP_NODELIST": "gpu[08-09]", "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    ...     "SLURM_JOB_ID": "7", "SLURM_PROCID": "1"})
    Hosts(addresses=('gpu08:20007', 'gpu09:20007'), count=2, index=1)
    """
    environment = os.environ if environment is None else environment
    if environment.get("TF_CONFIG"):
        return _of_tf_config(environment["TF_CONFIG"])
    if environment.get(_ADDRESSES):
        addresses = tuple(address.strip() for address in environment[_ADDRESSES].split(","))
        count = _number(environment, (_COUNT,), len(addresses))
        if len(addresses) not in (1, count):
            raise ValueError(
                f"Expected the addresses of {count} processes, or of the first one. "
                f"Received: {_ADDRESSES}={environment[_ADDRESSES]}"
            )
        return _checked(addresses, count, _number(environment, _INDEX))
    if all(environment.get(name) for name in _SLURM):
        addresses = _of_slurm(environment)
        if _number(environment, _MPI_COUNTS, 1) in (1, len(addresses)):  # else of mpirun inside
            return _checked(addresses, len(addresses), _number(environment, ("SLURM_PROCID",)))
    if (count := _number(environment, (_COUNT, *_MPI_COUNTS), 1)) > 1:
        raise ValueError(
            f"Expected the addresses of {count} processes. Received: no {_ADDRESSES}. "
            "Set it to the host:port of each, with commas between them"
        )
    return Hosts()


def _number(environment, names, default=None):
    """Return the whole number in the first of the variables that is there."""
    for name in names:
        if value := environment.get(name):
            if not value.isdecimal():
                raise ValueError(f"Expected a whole number. Received: {name}={value}")
            return int(value)
    if default is None:
        raise ValueError(
            f"Expected the number of this process, from 0. Received: none of {', '.join(names)}"
        )
    return default


def _checked(addresses, count, index):
    if index >= count:
        raise ValueError(
            f"Expected processes 0 to {count - 1}. Received: process {index}, of "
            f"{', '.join(addresses)}"
        )
    return Hosts(addresses, count, index)


def _of_tf_config(text):
    try:
        content = json.loads(text)
        workers = {role: tuple(content["cluster"].get(role, ())) for role in ("chief", "worker")}
        role, index = content["task"]["type"], int(content["task"]["index"])
        index += len(workers["chief"]) * ("chief", "worker").index(role)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            'Expected TF_CONFIG as {"cluster": {"worker": ["host:port", ...]}, "task": '
            f'{{"type": "worker", "index": 0}}}}. Received: TF_CONFIG={text} ({error!r})'
        ) from None
    addresses = workers["chief"] + workers["worker"]
    return _checked(addresses, len(addresses), index)


def _of_slurm(environment):
    """Return an address for each task of the step; the tasks of a node come together."""
    given = [f"{name}={environment[name]}" for name in _SLURM[:2]]
    try:
        nodes, tasks = _nodes(environment[_SLURM[0]]), _tasks(environment[_SLURM[1]])
    except ValueError:
        nodes, tasks = [], []
    if not nodes or len(nodes) != len(tasks):
        raise ValueError(
            "Expected the nodes of a step of Slurm and the tasks of each, as gpu[08-09] and 1(x2). "
            f"Received: {', '.join(given)}"
        )
    # Jobs that share a node have other ports.
    port = 20_000 + int(environment["SLURM_JOB_ID"]) % 20_000
    return tuple(
        f"{node}:{port + task}" for node, count in zip(nodes, tasks) for task in range(count)
    )


def _nodes(text):
    """Return the names that a list of nodes stands for, as ``rack[1-2]n[08-09,12],login``."""
    nodes = []
    for name in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        parts = re.split(r"\[([^\]]*)\]", name)  # every second one was in brackets
        choices = [_numbers(part) if i % 2 else [part] for i, part in enumerate(parts)]
        nodes += ["".join(chosen) for chosen in itertools.product(*choices)]
    return nodes


def _numbers(ranges):
    numbers = []
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        numbers += [f"{n:0{len(first)}}" for n in range(int(first), int(last or first) + 1)]
    return numbers


def _tasks(text):
    """Return the number of tasks of each node, from ``2(x3),1``."""
    tasks = []
    for part in text.split(","):
        of_each, _, times = part.rstrip(")").partition("(x")
        tasks += [int(of_each)] * int(times or 1)
    return tasks
