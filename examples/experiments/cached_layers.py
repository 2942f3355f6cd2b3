"""What the task models share: batches of like length, and the layers of a frozen biLM.

The layers of each text are computed once and stand in a file that later runs read.
"""

import hashlib
import io

import keras
import numpy as np
from keras import layers

import keras_elmo

LAYERS = "all", "top", "token"  # token: layer 0, which has read no context
_ONE_LAYER = {"top": -1, "token": 0}


class Batches(keras.utils.PyDataset):
    """Batches of sentences of like length, whose order depends on the seed alone.

    Args:
        make_batch: Function of the indices of a batch's sentences, and of a random
            generator that depends on the seed, the epoch and the batch; None without seed.
        lengths: Tokens of every sentence.
        chosen: Indices of the sentences to batch.
        batch_size: Sentences in a batch.
        seed: None to keep the order of ``chosen`` among sentences of one length.
        passes: Over the sentences, in an epoch.
    """

    def __init__(self, make_batch, lengths, chosen, batch_size, seed=None, passes=1):
        super().__init__()
        self.make_batch, self.batch_size, self.passes = make_batch, batch_size, passes
        self.lengths, self.chosen = np.asarray(lengths), np.asarray(chosen)
        self.seed, self.epoch = seed, 0
        self.random = None if seed is None else np.random.default_rng(seed)
        self.on_epoch_end()

    def on_epoch_end(self):
        self.epoch += 1
        self.indices = [batch for _ in range(self.passes) for batch in self._one_pass()]
        # TensorFlow takes a width that the first two batches share for that of all.
        widths = [self.lengths[batch].max() for batch in self.indices]
        other = next((n for n, width in enumerate(widths) if width != widths[0]), 0)
        if other:
            self.indices[1], self.indices[other] = self.indices[other], self.indices[1]

    def _one_pass(self):
        order = self.random.permutation(self.chosen) if self.random else self.chosen
        order = order[np.argsort(self.lengths[order], kind="stable")]
        starts = np.arange(0, len(order), self.batch_size)
        starts = self.random.permutation(starts) if self.random else starts
        return [order[start : start + self.batch_size] for start in starts]

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, number):
        # One of its own, as a backend may ask for a batch twice.
        random = self.random and np.random.default_rng([self.seed, self.epoch, number])
        return self.make_batch(self.indices[number], random)


def passes_per_epoch(share):
    """Return how often an epoch goes over a share of the data, so that little of it is learnt too.

    An epoch has a tenth of the steps for a hundredth of the data.

    Raises:
        ValueError: If the share is not above 0 and up to 1.
    """
    if not 0 < share <= 1:
        raise ValueError(f"--share expects a number above 0 and up to 1. Received: {share}")
    return max(1, round(share**-0.5))


def layer_files(elmo, texts, folder):
    """Return the layers of each text, in a file that the first run writes.

    Args:
        elmo: The ``ElmoLayer``.
        texts: Dict from the name of a text to its sentences, tokens between spaces.
        folder: Path of the folder of the files.

    Returns:
        Dict from name to ``LayerDataset``.
    """
    embedder = keras_elmo.Embedder(elmo)
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, sentences in texts.items():
        text = "\n".join(sentences)
        key = hashlib.sha256(f"{elmo.fingerprint()}\n{text}".encode()).hexdigest()
        path = folder / f"{name}-{key[:16]}.hdf5"
        if not path.exists():
            embedder.embed_file(io.StringIO(text), path, float16=True, resume=True)
        files[name] = keras_elmo.LayerDataset(path)
    return files


def elmo_places(settings, representations, mask):
    """Return a function that puts ELMo beside x where the settings want it, and its mixes.

    Args:
        settings: With ``elmo``, the places; ``layers``, one of ``LAYERS``; ``l2``.
        representations: Layers of the biLM, ``(batch, tokens, layers, width)``, or None.
        mask: Bool, ``(batch, tokens)``.

    Returns:
        Function of x, ``(batch, tokens, ...)``, of ``"input"`` or ``"output"``, and of the
        dropout on ELMo; dict from place to ``ScalarMix``, which the function fills.
    """
    mixes = {}

    def with_elmo(x, place, dropout=0.5):
        if settings.elmo not in (place, "both"):
            return x
        if settings.layers in _ONE_LAYER:  # nothing to mix: the weights behind it scale it
            layer = representations[:, :, _ONE_LAYER[settings.layers]]
            return layers.Concatenate()([x, layers.Dropout(dropout)(layer)])
        mix = keras_elmo.ScalarMix(dropout=dropout, l2=settings.l2, name=f"mix_at_{place}")
        mixes[place] = mix
        return layers.Concatenate()([x, mixes[place](representations, mask=mask)])

    return with_elmo, mixes
