"""Several devices that share each batch, in one process or in several."""

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator

import keras

from keras_elmo.utils.checks import shorten

_ADDRESSES = "KERAS_DISTRIBUTION_JOB_ADDRESSES"
_COUNT = "KERAS_DISTRIBUTION_NUM_PROCESSES"
# Launchers give the number of a process in one of these variables. Open MPI comes before Slurm:
# inside a Slurm job, mpirun leaves the Slurm number of its daemon in the environment.
_INDEX = (
    "KERAS_DISTRIBUTION_PROCESS_ID",
    *("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "JOB_COMPLETION_INDEX"),
)


@dataclasses.dataclass(frozen=True)
class Share:
    """Describe the part of each batch that this process computes.

    Attributes:
        processes: int. Number of processes that train together.
        index: int. Number of this process, from 0. The first process writes the files.
        replicas: int. Devices of this process.
    """

    processes: int = 1
    index: int = 0
    replicas: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files and shows the progress."""
        return self.index == 0

    def parts(self, devices: int) -> range:
        """Return the numbers of the parts that this process computes, of ``devices`` in all."""
        total = self.processes * self.replicas
        if devices % total:
            raise ValueError(
                f"Expected a number of parts that {total} devices share evenly. "
                f"Received: devices={devices}"
            )
        size = devices // self.processes
        return range(self.index * size, (self.index + 1) * size)


_shares = [Share()]


def current_share() -> Share:
    """Return the ``Share`` of the innermost ``sharing``; outside, the whole batch."""
    return _shares[-1]


@contextlib.contextmanager
def sharing(devices: int | None = None, resume: bool = False) -> Iterator[int]:
    """Build and train models inside the block on several devices.

    Every device has all weights and computes a part of each batch; the gradients are summed.
    Enter the block before anything is computed.

    Several processes find each other through the environment: JAX reads the variables of Slurm
    and Open MPI, TensorFlow ``TF_CONFIG`` and the variables of Slurm, and both read
    ``KERAS_DISTRIBUTION_JOB_ADDRESSES``. All processes use equally many devices.

    Args:
        devices: int or None. Number of devices of all processes, and of parts of a batch. None
            for all devices of several processes, or one device of one process.
        resume: bool. Whether fewer devices may compute several parts each.

    Yields:
        The number of parts.

    Raises:
        ValueError: If ``devices`` is less than 1; if there are too few devices; if several
            processes cannot share the devices evenly; if the environment is incomplete; if the
            backend is PyTorch.

    Examples:
        >>> with sharing(1) as devices:
        ...     devices
        1
    """
    if devices is not None and devices < 1:
        raise ValueError(f"Expected 1 device or more. Received: devices={devices}")
    count = _count_processes()
    if count == 1 and devices in (None, 1):
        yield 1
        return
    backend = keras.backend.backend()
    if backend not in ("jax", "tensorflow"):
        raise ValueError(
            "Several devices need the backend JAX or TensorFlow. "
            f"Received: devices={devices}, processes={count} on {backend}"
        )
    begin = _begin_jax if backend == "jax" else _begin_tensorflow
    with begin(count, devices, resume) as share:
        devices = devices or share.processes * share.replicas
        share.parts(devices)
        _shares.append(share)
        try:
            yield devices
        finally:
            _shares.pop()


def _count_processes() -> int:
    if keras.backend.backend() == "tensorflow" and os.environ.get("TF_CONFIG"):
        return _count_in_cluster(os.environ["TF_CONFIG"])
    if addresses := _addresses():
        count = _number(_COUNT) or len(addresses)
        if len(addresses) not in (1, count):
            raise ValueError(
                f"Expected the addresses of {count} processes, or of the first one. "
                f"Received: {_ADDRESSES}={','.join(addresses)}"
            )
        return count
    sizes = ("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
    return max(_number(name) or 1 for name in sizes)


def _number(name: str) -> int:
    """Return the number in an environment variable, 0 if it is not set."""
    text = os.environ.get(name) or "0"
    if not text.isdecimal():
        raise ValueError(f"Expected a number of processes. Received: {name}={text}")
    return int(text)


def _count_in_cluster(text: str) -> int:
    """Return the number of processes in the text of ``TF_CONFIG``."""
    with contextlib.suppress(ValueError, AttributeError, TypeError):
        config = json.loads(text)
        cluster, task = config.get("cluster", {}), config.get("task", {})
        count = sum(len(cluster.get(role, ())) for role in ("chief", "worker")) or 1
        if count == 1 or {"type", "index"} <= task.keys():
            return count
    raise ValueError(
        "TensorFlow expects TF_CONFIG to be JSON with a cluster, and the type and index of the "
        f"task of this process. Received: TF_CONFIG={shorten(text)}"
    )


def _addresses() -> list[str]:
    text = os.environ.get(_ADDRESSES, "")
    return [address.strip() for address in text.split(",") if address.strip()]


def _index(count: int) -> int:
    name, text = next(
        ((name, os.environ[name]) for name in _INDEX if os.environ.get(name)),
        ("none of " + ", ".join(_INDEX), ""),
    )
    if not text.isdecimal() or int(text) >= count:
        raise ValueError(
            f"Expected the number of this process, 0 to {count - 1}. Received: {name} {text}. "
            f"Set {_INDEX[0]}"
        )
    return int(text)


@contextlib.contextmanager
def _begin_jax(count: int, devices: int | None, resume: bool) -> Iterator[Share]:
    import jax

    if count > 1:
        # Without a seed, keras.distribution.initialize would compute one on all devices.
        keras.utils.set_random_seed(0)
        if addresses := _addresses():
            keras.distribution.initialize(addresses[0], count, _index(count))
        else:
            keras.distribution.initialize()
    of_process: dict[int, list[str]] = {}
    for device in sorted(jax.devices(), key=lambda device: device.process_index):
        of_process.setdefault(device.process_index, []).append(f"{device.platform}:{device.id}")
    replicas = _count_replicas(count, devices, min(map(len, of_process.values())), resume)
    names = [name for own in of_process.values() for name in own[:replicas]]
    before = keras.distribution.distribution()
    # Each process makes its own part of a batch, so Keras must not split the data again.
    keras.distribution.set_distribution(
        keras.distribution.DataParallel(devices=names, auto_shard_dataset=False)
    )
    try:
        yield Share(count, jax.process_index(), replicas)
    finally:
        keras.distribution.set_distribution(before)


@contextlib.contextmanager
def _begin_tensorflow(count: int, devices: int | None, resume: bool) -> Iterator[Share]:
    import tensorflow as tf

    if count == 1:
        local = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        replicas = _count_replicas(count, devices, len(local), resume)
        with tf.distribute.MirroredStrategy([d.name for d in local[:replicas]]).scope():
            yield Share(replicas=replicas)
        return
    if not os.environ.get("TF_CONFIG"):
        cluster, index = _find_workers(count)
        task = {"type": "worker", "index": index}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    n_chiefs = len(resolver.cluster_spec().as_dict().get("chief", ()))
    index = resolver.task_id + (n_chiefs if resolver.task_type == "worker" else 0)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    # The strategy uses all devices of every process.
    available = strategy.num_replicas_in_sync // count
    if _count_replicas(count, devices, available, resume) != available:
        raise ValueError(
            f"TensorFlow trains on all {count * available} devices of the {count} processes. "
            f"Received: devices={devices}. Hide devices, for example with CUDA_VISIBLE_DEVICES"
        )
    with strategy.scope():
        yield Share(count, index, available)


def _find_workers(count: int) -> tuple[dict[str, list[str]], int]:
    """Return the cluster as in ``TF_CONFIG``, and the number of this process."""
    import tensorflow as tf

    addresses = _addresses()
    if addresses or "SLURM_STEP_NODELIST" not in os.environ:
        if len(addresses) != count:
            raise ValueError(
                f"TensorFlow expects the addresses of {count} processes. "
                f"Received: {_ADDRESSES}={','.join(addresses)}. Set it to the host:port of each "
                "process, with commas between them"
            )
        return {"worker": addresses}, _index(count)
    resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(
        # Jobs that share a node get other ports.
        port_base=20_000 + int(os.environ["SLURM_JOB_ID"]) % 20_000,
        # Slurm assigns the GPUs; these numbers only let the resolver place every task.
        **{"gpus_per_node": count, "gpus_per_task": 1, "auto_set_gpu": False},
    )
    cluster, index = resolver.cluster_spec().as_dict(), resolver.get_task_info()[1]
    node = os.environ.get("SLURMD_NODENAME")
    own = cluster["worker"][index].rpartition(":")[0]
    if node not in (None, own):  # the resolver sorts the names of the nodes, Slurm may not
        raise ValueError(
            f"TensorFlow expects process {index} on node {own}. Received: SLURMD_NODENAME={node}. "
            f"Set {_ADDRESSES} to the host:port of each process"
        )
    return cluster, index


def _count_replicas(count: int, devices: int | None, available: int, resume: bool) -> int:
    """Return how many devices of every process share a batch."""
    if devices is None:
        return available
    if devices % count:
        raise ValueError(
            f"Expected a number of devices that {count} processes share evenly. "
            f"Received: devices={devices}"
        )
    needed = devices // count
    if resume:
        return max(n for n in range(1, min(needed, available) + 1) if needed % n == 0)
    if needed > available:
        raise ValueError(
            f"Expected {devices} devices. Received: {count * available}, "
            f"{available} of each of {count} processes"
        )
    return needed
