"""Train a ``BiLanguageModel`` on a prepared corpus, with checkpoints to go on from."""

import collections
import csv
import dataclasses
import hashlib
import json
import math
import pathlib
import time

import keras
import numpy as np
from tqdm import tqdm

from keras_elmo.checkpoints.files import read_options, replacing
from keras_elmo.config import BiLMConfig
from keras_elmo.pretraining.checkpoint import load_checkpoint, save_checkpoint
from keras_elmo.pretraining.corpus import Batcher, Corpus
from keras_elmo.pretraining.language_model import BiLanguageModel
from keras_elmo.pretraining.prepare import read_vocabulary, write_vocabulary
from keras_elmo.pretraining.preset import read_language_model
from keras_elmo.pretraining.recipe import Recipe, Schedule
from keras_elmo.pretraining.scores import Scorer
from keras_elmo.pretraining.text import read_sentences

# Held-out tokens that every checkpoint is measured on.
_SAMPLE_TOKENS = 10_000


class Pretraining:
    """A run in a folder: options, recipe, vocabulary, a checkpoint, and a log of every checkpoint.

    Args:
        folder: The run's folder; made if it does not exist.
        corpus: Folder of ``prepare``.
        config: The ``BiLMConfig``; None with ``init_from``, which brings its own, or to
            resume.
        recipe: The ``Recipe``.
        interval: Steps between checkpoints; at most those are lost if the run is killed.
        devices: Number of devices that share each batch; more than one inside of
            ``sharing(devices)``.
        resume: Go on from the checkpoint in the folder, if there is one. The recipe may
            then have other ``steps``; all else must be as it was, the backend too.
        init_from: Preset to start from instead of random weights: fine-tuning.
        own_vocabulary: With ``init_from``, predict the tokens of the corpus's vocabulary and
            not of the preset's.

    Raises:
        ValueError: If the folder holds a run and ``resume`` is False, or one that began with
            other settings or another corpus; if the corpus is not a prepared one; if
            ``interval`` or ``devices`` is not 1 or more.

    Reference:
        Peters et al., 2018, sections 3.1 and 3.4 (fine-tuning).
    """

    def __init__(
        self,
        folder,
        corpus,
        config,
        recipe,
        *,
        interval=500,
        devices=1,
        resume=False,
        init_from=None,
        own_vocabulary=False,
    ):
        for name, value in (("interval", interval), ("devices", devices)):
            if value < 1:
                raise ValueError(
                    f"Pretraining expects {name} to be 1 or more. Received: {name}={value}"
                )
        self.folder = pathlib.Path(folder)
        self.recipe, self.interval, self.devices = recipe, interval, devices
        self._checkpoint = self.folder / "checkpoint.hdf5"
        is_there = self._checkpoint.exists()
        if is_there and not resume:
            raise ValueError(
                f"Pretraining expects a folder without a run. Received: {self.folder}, which holds "
                "a checkpoint. Resume it, or choose another folder"
            )
        corpus = pathlib.Path(corpus)
        files = sorted(corpus.glob("train-*.txt"))
        if not files:
            raise ValueError(
                f"Pretraining expects a folder of keras-elmo prepare. Received: {corpus}, which "
                "holds no train-*.txt"
            )
        keras.utils.set_random_seed(recipe.seed)
        settings = _settings(recipe)
        self.vocabulary = read_vocabulary(corpus / "vocab.txt")
        origin = {
            "corpus": _digest(corpus / "vocab.txt", files),
            "init_from": init_from and str(init_from),
            "own_vocabulary": own_vocabulary,
            # Both decide what a position in the corpus means.
            "devices": devices,
            "backend": keras.backend.backend(),
        }
        if is_there:
            config, origin = self._same_run(config, origin)
            self.vocabulary = read_vocabulary(self.folder / "vocab.txt")
            self.model = BiLanguageModel(config, len(self.vocabulary), **settings)
        elif init_from is None:
            self.model = BiLanguageModel(config, len(self.vocabulary), **settings)
        else:
            wanted = self.vocabulary if own_vocabulary else None
            self.model, self.vocabulary = read_language_model(init_from, wanted, **settings)
            config = self.model.config
        is_jax = keras.backend.backend() == "jax"
        batcher = Batcher(
            self.vocabulary,
            max_characters=config.max_characters_per_token,
            widest_filter=config.widest_filter,
            batch_tokens=recipe.batch_tokens,
            devices=devices,
            fixed_shapes=is_jax,
        )
        self._corpus = Corpus(files, batcher, recipe.max_tokens, recipe.seed)
        optimizer = keras.optimizers.Adam(Schedule(recipe), global_clipnorm=recipe.clip)
        # JAX has its fixed shapes; for TensorFlow XLA would compile anew for every batch.
        self.model.compile(optimizer, jit_compile=is_jax)
        optimizer.build(self.model.trainable_variables)
        self.facts = {"step": 0, "tokens": 0, "seconds": 0.0, "position": [0, 0, 0]}
        if is_there:
            self.facts = load_checkpoint(self._checkpoint, self._variables())
        self._scorer = Scorer(self.model, self.vocabulary)
        self._sample = _sample(corpus)
        self.folder.mkdir(parents=True, exist_ok=True)
        for unfinished in self.folder.glob("checkpoint.hdf5.*.tmp"):  # of a run that was killed
            unfinished.unlink()
        self._cut_log()
        contents = {
            "options.json": config.to_options(),
            "recipe.json": dataclasses.asdict(recipe),
            "origin.json": origin,
        }
        names = (*contents, "vocab.txt")
        with replacing(*(self.folder / name for name in names)) as temporary:
            for path, content in zip(temporary, contents.values()):
                path.write_text(json.dumps(content, indent=2) + "\n")
            write_vocabulary(temporary[-1], self.vocabulary)

    def _same_run(self, config, origin):
        """Return the options and the origin of the run in the folder, if they are these too."""
        stored = read_settings(self.folder)
        stored_config = BiLMConfig.from_options(stored["options"])
        recipe = dataclasses.asdict(self.recipe) | {"steps": stored["recipe"]["steps"]}
        other = [name for name in recipe if recipe[name] != stored["recipe"][name]]
        if config not in (None, stored_config):
            other.append("options of the biLM")
        if origin["init_from"] is None:  # it need not be given again
            origin |= {name: stored["origin"][name] for name in ("init_from", "own_vocabulary")}
        other += [name for name in origin if origin[name] != stored["origin"].get(name)]
        if other:
            raise ValueError(
                f"Pretraining expects to resume {self.folder} with the settings it began with, "
                f"but for steps. Received: another {', '.join(other)}"
            )
        return stored_config, stored["origin"]

    def _variables(self):
        return {"model": self.model.variables, "optimizer": self.model.optimizer.variables}

    def run(self, callbacks=(), progress=True) -> None:
        """Train to the last step of the recipe.

        Args:
            callbacks: Keras callbacks; one of their epochs is one interval, and one that
                sets ``stop_training`` ends the run at its checkpoint.
            progress: Whether to show a progress bar.
        """
        keeper = _Keeper(self, progress)
        self._failure = None
        left = max(0, self.recipe.steps - self.facts["step"])
        whole, rest = left // self.interval, left % self.interval
        try:
            for epochs, steps in ((whole, self.interval), (1, rest)):
                if epochs and steps:
                    keeper.ahead = collections.deque()
                    before = -(-self.facts["step"] // self.interval)  # as TensorBoard counts
                    self.model.fit(
                        self._feed(keeper.ahead),
                        steps_per_epoch=steps,
                        initial_epoch=before,
                        epochs=before + epochs,
                        verbose=0,
                        callbacks=[keeper, *callbacks],
                    )
                    if self.model.stop_training:
                        return
        except Exception:
            # TensorFlow hands on the text of an error of the corpus, and not the error.
            if self._failure is not None:
                raise self._failure from None
            raise
        finally:
            keeper.bar.close()

    def save(self) -> None:
        """Write the checkpoint."""
        save_checkpoint(self._checkpoint, self._variables(), self.facts)

    def heldout_perplexity(self):
        """Return the joint perplexity of a sample of the held-out text, None if there is none."""
        return self._scorer.perplexity(self._sample)["perplexity"] if self._sample else None

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
                lines = list(csv.reader(file))
            if not lines:  # killed before the first line
                path.unlink()
                return
            header, *rows = lines
            with replacing(path) as (temporary,), open(temporary, "w", newline="") as file:
                rows = [row for row in rows if len(row) == len(header)]  # a kill may cut one
                rows = [row for row in rows if int(row[0]) <= self.facts["step"]]
                csv.writer(file).writerows([header, *rows])

    def _feed(self, ahead):
        """Return the batches from the checkpoint on; ``ahead`` gets their tokens and positions."""

        def batches():
            try:
                for batch, position in self._corpus.batches(self.facts["position"]):
                    inside = batch["weights"] > 0
                    # One prediction a sentence and direction is a boundary, not a token.
                    ahead.append((int(inside.sum() - inside[:, 0].sum()), list(position)))
                    yield batch
            except (OSError, ValueError) as error:
                self._failure = error
                raise

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
        self.ahead = None
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
        weights = (keras.ops.convert_to_numpy(w) for w in self.run.model.trainable_variables)
        if not (math.isfinite(logs["loss"]) and all(np.isfinite(w).all() for w in weights)):
            raise ValueError(
                f"The loss is {logs['loss']} at step {facts['step']}, or a weight is not finite: "
                "training diverged, and the last checkpoint is kept. Begin anew with a lower "
                "learning rate"
            )
        facts["seconds"] = time.monotonic() - self.started
        row = {
            "step": facts["step"],
            "tokens": facts["tokens"],
            "seconds": round(facts["seconds"], 1),
            "learning_rate": float(Schedule(self.run.recipe)(facts["step"])),
            "loss": logs["loss"],
            "perplexity": self.run.heldout_perplexity(),
        }
        logs.update({name: value for name, value in row.items() if value is not None})
        # The log first: a row without its checkpoint is cut when the run is resumed.
        self.run.log(row)
        self.run.save()


def read_run(folder):
    """Read the model of a run as of its last checkpoint.

    Returns:
        The ``BiLanguageModel``, its vocabulary, and the facts of the checkpoint: ``step``,
        ``tokens``, ``seconds``, and ``init_from``, the preset it began with, or None.

    Raises:
        FileNotFoundError: If the folder holds no checkpoint.
    """
    folder = pathlib.Path(folder)
    if not (folder / "checkpoint.hdf5").is_file():
        raise FileNotFoundError(f"Folder {folder} holds no checkpoint of keras-elmo pretrain")
    settings = read_settings(folder)
    config = BiLMConfig.from_options(settings["options"])
    vocabulary = read_vocabulary(folder / "vocab.txt")
    recipe = Recipe(**settings["recipe"])
    model = BiLanguageModel(config, len(vocabulary), **_settings(recipe))
    facts = load_checkpoint(folder / "checkpoint.hdf5", {"model": model.variables})
    return model, vocabulary, {**facts, "init_from": settings["origin"]["init_from"]}


def read_settings(folder) -> dict:
    """Return the ``options``, ``recipe`` and ``origin`` that the folder of a run keeps."""
    folder = pathlib.Path(folder)
    names = ("options", "recipe", "origin")
    return {name: read_options(folder / f"{name}.json", f"{name}.json") for name in names}


def _settings(recipe):
    """Return the arguments of ``BiLanguageModel`` that a recipe decides."""
    return {
        "n_negatives": recipe.negatives,
        "dropout": recipe.dropout,
        "product_dtype": recipe.products,
        "seed": recipe.seed,
        "name": "lm",
    }


def _digest(vocabulary, files):
    """Return a digest of the vocabulary, and of the names and sizes of the files."""
    digest = hashlib.sha256(vocabulary.read_bytes())
    digest.update(json.dumps([(file.name, file.stat().st_size) for file in files]).encode())
    return digest.hexdigest()


def _sample(corpus):
    """Return some held-out sentences of a corpus, spread over all its files."""
    files = sorted(corpus.glob("heldout-*.txt"))
    sentences = [sentence for file in files for sentence in read_sentences(file) if sentence]
    tokens = sum(map(len, sentences))
    return sentences[:: max(1, tokens // _SAMPLE_TOKENS)]
