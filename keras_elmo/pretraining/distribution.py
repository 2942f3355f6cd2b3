"""Several devices, as the user set them up with Keras or TensorFlow.

On JAX a run uses the ``keras.distribution.DataParallel`` that is set, on one host or several. On
TensorFlow it uses the strategy of ``tf.distribute`` whose scope is open, on one host.
"""

import keras
import numpy as np


def count_devices() -> int:
    """Return the number of devices that share each batch."""
    if keras.backend.backend() == "jax":
        distribution = keras.distribution.distribution()
        return distribution.device_mesh.devices.size if distribution else 1
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.distribute.get_strategy().num_replicas_in_sync
    return 1


def this_process() -> tuple[int, int]:
    """Return the number of this process, from 0, and how many processes train together."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.process_index(), jax.process_count()
    return 0, 1


def rows_of_process(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the rows of a batch that this process passes to its devices."""
    index, count = this_process()
    return {
        name: x[index * len(x) // count : (index + 1) * len(x) // count]
        for name, x in batch.items()
    }


def batches_of_replicas(batch: dict[str, np.ndarray], n: int) -> list[dict[str, np.ndarray]]:
    """Split a batch for the ``n`` replicas of TensorFlow, each with its own distinct tokens.

    The mean of the losses of the replicas is the loss of the batch. All parts have equal shapes,
    because Keras adds up the first ones.
    """
    words = [batch["words"][replica::n] for replica in range(n)]
    found = [np.unique(part, return_inverse=True) for part in words]
    most = max(len(distinct) for distinct, _ in found)
    return [
        {
            "characters": batch["characters"][np.resize(distinct, most)],
            "words": places.reshape(words[replica].shape).astype("int32"),
            "targets": batch["targets"][replica::n],
            "weights": n * batch["weights"][replica::n],
        }
        for replica, (distinct, places) in enumerate(found)
    ]
