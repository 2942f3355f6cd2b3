"""Train a ``BiLanguageModel`` on a prepared corpus, with checkpoints to go on from."""

import collections
import csv
import dataclasses
import json
import pathlib
import time

import keras
from tqdm import tqdm

from keras_elmo.checkpoints.files import replacing
from keras_elmo.pretraining import checkpoint
from keras_elmo.pretraining.corpus import Batcher, Corpus
from keras_elmo.pretraining.language_model import BiLanguageModel
from keras_elmo.pretraining.prepare import read_vocabulary, write_vocabulary
from keras_elmo.pretraining.recipe import Schedule
from keras_elmo.pretraining.scores import Scorer

# Held-out tokens that every checkpoint is measured on.
_SAMPLE_TOKENS = 10_000


class Pretraining:
    """A run in a folder: ``options.json``, ``recipe.json``, ``vocab.txt``, a checkpoint, a log.

    Args:
        folder: The run's folder; made if it does not exist.
        corpus: Folder of ``prepare``.
        config: The ``BiLMConfig``.
        recipe: The ``Recipe``.
        interval: Steps between checkpoints; at most those are lost if the run is killed.
        devices: Number of devices to share each batch. On JAX set
            ``keras.distribution.DataParallel`` before; on TensorFlow construct and run
            inside the scope of a ``tf.distribute`` strategy.
        resume: Go on from the checkpoint in the folder, if there is one.

    Raises:
        ValueError: If the folder holds a run and ``resume`` is False, or one of other
            options; if the corpus is not a prepared one.
    """

    def __init__(self, folder, corpus, config, recipe, interval=500, devices=1, resume=False):
        self.folder = pathlib.Path(folder)
        self.config, self.recipe, self.interval = config, recipe, interval
        self.devices = devices
        corpus = pathlib.Path(corpus)
        files = sorted(corpus.glob("train-*.txt"))
        if not files:
            raise ValueError(
                f"Pretraining expects a folder of keras-elmo prepare. Received: {corpus}, which "
                "holds no train-*.txt"
            )
        vocabulary = read_vocabulary(corpus / "vocab.txt")
        self.checkpoint = self.folder / "checkpoint.hdf5"
        there = self.checkpoint.exists()
        if there and not resume:
            raise ValueError(
                f"Pretraining expects a folder without a run. Received: {self.folder}, which holds "
                "a checkpoint. Resume it, or choose another folder"
            )
        batcher = Batcher(
            vocabulary,
            max_characters=config.max_characters_per_token,
            widest_filter=config.widest_filter,
            batch_tokens=recipe.batch_tokens,
            devices=devices,
            fixed_shapes=keras.backend.backend() == "jax",
        )
        self.corpus = Corpus(files, batcher, recipe.max_tokens, recipe.seed)
        keras.utils.set_random_seed(recipe.seed)
        self.model = BiLanguageModel(
            config,
            len(vocabulary),
            n_negatives=recipe.negatives,
            dropout=recipe.dropout,
            product_dtype=recipe.products,
            seed=recipe.seed,
            name="lm",
        )
        # XLA would compile anew for every shape, and JAX has its fixed shapes.
        self.model.compile(
            optimizer=keras.optimizers.Adam(Schedule(recipe), global_clipnorm=recipe.clip),
            jit_compile=keras.backend.backend() == "jax",
        )
        self.model.optimizer.build(self.model.trainable_variables)
        self.facts = {"step": 0, "tokens": 0, "seconds": 0.0, "position": [0, 0, 0]}
        if there:
            self.facts = checkpoint.load(self.checkpoint, self._variables())
        self._scorer = Scorer(self.model, vocabulary)
        self._sample = self._heldout(corpus)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._cut_log()
        names = ("options.json", "recipe.json", "vocab.txt")
        with replacing(*(self.folder / name for name in names)) as (o, r, v):
            o.write_text(json.dumps(config.to_options(), indent=2) + "\n")
            r.write_text(json.dumps(dataclasses.asdict(recipe), indent=2) + "\n")
            write_vocabulary(v, vocabulary)

    def _variables(self):
        variables = [*self.model.variables, *self.model.optimizer.variables]
        return {f"{i:04}_{v.path.replace('/', '_')}": v for i, v in enumerate(variables)}

    def run(self, callbacks=(), progress=True) -> None:
        """Train to the last step of the recipe.

        Args:
            callbacks: Keras callbacks; one of their epochs is one interval.
            progress: Whether to show a progress bar.
        """
        left = self.recipe.steps - self.facts["step"]
        keeper = _Keeper(self, progress)
        try:
            for epochs, steps in ((left // self.interval, self.interval), (1, left % self.interval)):
                if epochs and steps:
                    self.model.fit(
                        self._feed(keeper.ahead),
                        steps_per_epoch=steps,
                        epochs=epochs,
                        verbose=0,
                        callbacks=[keeper, *callbacks],
                    )
        finally:
            keeper.bar.close()

    def save(self) -> None:
        """Write the checkpoint."""
        checkpoint.save(self.checkpoint, self._variables(), self.facts)

    def heldout_perplexity(self):
        """Return the joint perplexity of a sample of the held-out text, None if there is none."""
        return self._sample and self._scorer.perplexity(self._sample)["perplexity"]

    def log(self, row) -> None:
        """Append a row to ``log.csv``."""
        path = self.folder / "log.csv"
        is_new = not path.exists()
        with open(path, "a", newline="") as file:
            writer = csv.DictWriter(file, row)
            if is_new:
                writer.writeheader()
            writer.writerow(row)

    def _cut_log(self):
        """Drop what was logged behind the checkpoint."""
        path = self.folder / "log.csv"
        if path.exists():
            with open(path, newline="") as file:
                header, *rows = list(csv.reader(file))
            with replacing(path) as (temporary,), open(temporary, "w", newline="") as file:
                rows = [row for row in rows if int(row[0]) <= self.facts["step"]]
                csv.writer(file).writerows([header, *rows])

    @staticmethod
    def _heldout(corpus):
        """Return some held-out sentences, spread over all held-out files."""
        sentences = [
            line.split()
            for file in sorted(corpus.glob("heldout-*.txt"))
            for line in file.read_text("utf-8").split("\n")
            if line.strip()
        ]
        tokens = sum(map(len, sentences))
        return sentences[:: max(1, tokens // _SAMPLE_TOKENS)]

    def _feed(self, ahead):
        """Return the batches from the checkpoint on; ``ahead`` gets their tokens and positions."""

        def batches():
            for batch, position in self.corpus.batches(self.facts["position"]):
                inside = batch["weights"] > 0
                # One prediction a sentence and direction is a boundary, not a token.
                ahead.append((int(inside.sum() - inside[:, 0].sum()), list(position)))
                yield batch

        if keras.backend.backend() != "tensorflow":
            return ((batch,) for batch in batches())
        import tensorflow as tf

        n = self.devices
        spec = {
            "characters": tf.TensorSpec((n, None, None), tf.int32),
            "words": tf.TensorSpec((n, 2, None, None), tf.int32),
            "targets": tf.TensorSpec((n, 2, None, None), tf.int32),
            "weights": tf.TensorSpec((n, None, None), tf.float32),
        }
        feed = tf.data.Dataset.from_generator(batches, output_signature=spec)
        return feed.map(lambda batch: (batch,)).prefetch(4)


class _Keeper(keras.callbacks.Callback):
    """Count, log, evaluate and write the checkpoint."""

    def __init__(self, run, progress):
        super().__init__()
        self.run = run
        self.ahead = collections.deque()
        self.started = time.monotonic() - run.facts["seconds"]
        self.new_tokens, self.began = 0, time.monotonic()
        self.bar = tqdm(
            total=run.recipe.steps,
            initial=run.facts["step"],
            unit=" steps",
            desc="pretraining",
            disable=not progress,
        )

    def on_train_batch_end(self, batch, logs=None):
        facts = self.run.facts
        tokens, facts["position"] = self.ahead.popleft()
        facts["step"] += 1
        facts["tokens"] += tokens
        self.new_tokens += tokens
        self.bar.update()
        if batch % 10 == 9:
            rate = self.new_tokens / (time.monotonic() - self.began)
            self.bar.set_postfix_str(f"loss {logs['loss']:.3f}, {rate:.0f} tokens/s")

    def on_epoch_end(self, epoch, logs=None):
        facts = self.run.facts
        facts["seconds"] = time.monotonic() - self.started
        self.run.save()
        row = {
            "step": facts["step"],
            "tokens": facts["tokens"],
            "seconds": round(facts["seconds"], 1),
            "learning_rate": float(Schedule(self.run.recipe)(facts["step"])),
            "loss": logs["loss"],
            "perplexity": self.run.heldout_perplexity(),
        }
        logs.update(row)
        self.run.log(row)
