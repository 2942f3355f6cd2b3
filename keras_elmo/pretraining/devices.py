"""Several devices that share each batch, of one process or of several."""

import contextlib
import dataclasses
import json
import os

import keras

from keras_elmo.pretraining.hosts import Hosts, find_hosts


@dataclasses.dataclass(frozen=True)
class Share:
    """What a process computes of each batch.

    Attributes:
        processes: Number of processes that train together.
        index: Number of this one, from 0. The first one writes.
        replicas: Devices of this process.
    """

    processes: int = 1
    index: int = 0
    replicas: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes, and shows how far the run is."""
        return self.index == 0

    def parts(self, devices) -> range:
        """Return which of the parts of a batch this process computes.

        Args:
            devices: Number of parts.

        Raises:
            ValueError: If the devices of the processes cannot share them evenly.
        """
        if devices % (self.processes * self.replicas):
            raise ValueError(
                f"Expected a batch in parts that {self.processes * self.replicas} devices share "
                f"evenly. Received: devices={devices}"
            )
        own = devices // self.processes
        return range(self.index * own, (self.index + 1) * own)


_shares = [Share()]


def current_share() -> Share:
    """Return the ``Share`` of the ``sharing`` around; all of each batch outside of one."""
    return _shares[-1]


@contextlib.contextmanager
def sharing(devices=None, resume=False):
    """Build and train models inside on the first so many devices of the backend.

    Every device holds all weights and computes a part of each batch, and their gradients are
    added up: on JAX through ``keras.distribution.DataParallel``, on TensorFlow through
    ``tf.distribute.MirroredStrategy``. With several processes (``find_hosts``) the devices
    are those of all of them, as many of each: on JAX through ``keras.distribution.initialize``,
    on TensorFlow through ``MultiWorkerMirroredStrategy``. Enter it before anything is computed.

    Args:
        devices: How many, that is, into how many parts a batch is split. None for all
            devices of several processes, and for one if there is one process.
        resume: Whether fewer devices will do, each with several parts.

    Yields:
        The number of parts.

    Raises:
        ValueError: If ``devices`` is not 1 or more; if there are not so many, or the backend
            is PyTorch; if several processes cannot share them evenly.

    Example:

    >>> with sharing(1) as devices:
    ...     devices
    1
    """
    if devices is not None and devices < 1:
        raise ValueError(f"Expected 1 device or more. Received: devices={devices}")
    hosts = find_hosts()
    if hosts.count == 1 and devices in (None, 1):
        yield 1
        return
    backend = keras.backend.backend()
    if backend not in ("jax", "tensorflow"):
        raise ValueError(
            "Several devices need the backend JAX or TensorFlow. "
            f"Received: devices={devices}, processes={hosts.count} on {backend}"
        )
    begin = _begin_jax if backend == "jax" else _begin_tensorflow
    with begin(hosts, devices, resume) as replicas:
        share = Share(hosts.count, hosts.index, replicas)
        devices = devices or hosts.count * replicas
        share.parts(devices)
        _shares.append(share)
        try:
            yield devices
        finally:
            _shares.pop()


@contextlib.contextmanager
def _begin_jax(hosts, devices, resume):
    if hosts.count > 1:
        keras.utils.set_random_seed(0)  # or Keras would agree on one, through all devices
        keras.distribution.initialize(hosts.addresses[0], hosts.count, hosts.index)
    import jax

    of_process: dict[int, list] = {}
    for device in jax.devices():
        name = f"{device.platform}:{device.id}"
        of_process.setdefault(device.process_index, []).append(name)
    available = min(map(len, of_process.values()))
    replicas = _replicas(hosts, devices, available, resume)
    names = [name for i in sorted(of_process) for name in of_process[i][:replicas]]
    before = keras.distribution.distribution()
    # Each process makes its own part of a batch.
    keras.distribution.set_distribution(
        keras.distribution.DataParallel(devices=names, auto_shard_dataset=False)
    )
    try:
        yield replicas
    finally:
        keras.distribution.set_distribution(before)


@contextlib.contextmanager
def _begin_tensorflow(hosts, devices, resume):
    import tensorflow as tf

    if hosts.count > 1:
        if len(hosts.addresses) != hosts.count:
            raise ValueError(
                "TensorFlow expects the address of every process. "
                f"Received: {', '.join(hosts.addresses)} for {hosts.count} processes"
            )
        task = {"type": "worker", "index": hosts.index}
        cluster = {"worker": list(hosts.addresses)}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        # It takes all devices of every process.
        available = strategy.num_replicas_in_sync // hosts.count
        if _replicas(hosts, devices, available, resume) != available:
            raise ValueError(
                f"TensorFlow trains on all {hosts.count * available} devices of the "
                f"{hosts.count} processes. Received: devices={devices}. Hide some from them, as "
                "with CUDA_VISIBLE_DEVICES"
            )
        with strategy.scope():
            yield available
        return
    names = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    names = [device.name for device in names]
    replicas = _replicas(hosts, devices, len(names), resume)
    with tf.distribute.MirroredStrategy(names[:replicas]).scope():
        yield replicas


def _replicas(hosts: Hosts, devices, available, resume) -> int:
    """Return how many devices of every process share a batch of so many parts."""
    if devices is None:
        return available
    if devices % hosts.count:
        raise ValueError(
            f"Expected devices that {hosts.count} processes share evenly. "
            f"Received: devices={devices}"
        )
    needed = devices // hosts.count
    if resume:
        return max(n for n in range(1, min(needed, available) + 1) if needed % n == 0)
    if needed > available:
        raise ValueError(
            f"Expected {devices} devices. Received: {hosts.count * available}, "
            f"{available} of each of {hosts.count} processes"
        )
    return needed
