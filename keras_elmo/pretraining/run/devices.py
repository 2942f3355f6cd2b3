"""Several devices that share each batch."""

import contextlib

import keras


@contextlib.contextmanager
def sharing(devices: int):
    """Build and train models inside on the first so many devices of the backend.

    On JAX through ``keras.distribution.DataParallel``, on TensorFlow through
    ``tf.distribute.MirroredStrategy``: every device holds all weights and computes a part
    of each batch, and their gradients are added up.

    Args:
        devices: How many. With 1 nothing is done.

    Raises:
        ValueError: If it is not 1 or more; if there are not so many, or the backend is PyTorch.

    Example:

    >>> with sharing(1):
    ...     pass
    """
    if devices < 1:
        raise ValueError(f"Expected 1 device or more. Received: devices={devices}")
    if devices == 1:
        yield
        return
    backend = keras.backend.backend()
    if backend == "torch":
        raise ValueError(
            "Several devices need the backend JAX or TensorFlow. "
            f"Received: devices={devices} on PyTorch"
        )
    if backend == "jax":
        names = keras.distribution.list_devices()
        _check(devices, names)
        before = keras.distribution.distribution()
        keras.distribution.set_distribution(
            keras.distribution.DataParallel(devices=names[:devices])
        )
        try:
            yield
        finally:
            keras.distribution.set_distribution(before)
        return
    import tensorflow as tf

    names = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    names = [device.name for device in names]
    _check(devices, names)
    with tf.distribute.MirroredStrategy(names[:devices]).scope():
        yield


def _check(devices, names):
    if len(names) < devices:
        raise ValueError(f"Expected {devices} devices. Received: {len(names)}, {', '.join(names)}")
