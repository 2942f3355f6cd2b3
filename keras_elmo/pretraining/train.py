"""Train a ``BiLanguageModel`` on a prepared corpus, with checkpoints to go on from."""

import collections
import contextlib
import dataclasses
import hashlib
import json
import pathlib
import time

import keras
import numpy as np
from tqdm import tqdm

from keras_elmo.pretraining.checkpoint import to_numpy
from keras_elmo.pretraining.corpus import START, Batcher, Corpus
from keras_elmo.pretraining.devices import current_share
from keras_elmo.pretraining.growth import grow_language_model
from keras_elmo.pretraining.language_model import BiLanguageModel
from keras_elmo.pretraining.language_model_files import read_language_model
from keras_elmo.pretraining.optimizers import make_optimizer
from keras_elmo.pretraining.recipe import CHANGEABLE, Schedule
from keras_elmo.pretraining.run_folder import RunFolder
from keras_elmo.pretraining.scores import Scorer
from keras_elmo.pretraining.text_files import read_sentences
from keras_elmo.pretraining.vocabulary import read_vocabulary

# Held-out tokens that every checkpoint is measured on.
_SAMPLE_TOKENS = 10_000
# Updates left out in a row after which a run has diverged.
_MOST_SKIPPED = 20


class Pretraining:
    r"""A training run: a ``BiLanguageModel``, its corpus and optimizer, kept in a folder.

    Of several processes (``sharing``) each makes its parts of the batches; all read the
    corpus and the folder, and the first one writes.

    Args:
        folder: The run's folder; made if it does not exist.
        corpus: Folder of ``prepare``.
        config: The ``BiLMConfig``. None for that of ``init_from``, or to resume.
        recipe: The ``Recipe``.
        save_every: Steps between checkpoints; at most those are lost if the run is killed,
            and those that it took while the last one was being written.
        devices: Into how many parts a batch is split; inside of ``sharing(devices)`` each
            device computes its own.
        resume: Go on from the checkpoint in the folder, if there is one. The recipe may
            then have other ``steps`` or ``epochs``, ``learning_rate``, ``decay``,
            ``decay_shape`` and ``clip_norm``, which the log tells; all else must be as it
            was, the backend and ``devices`` too; but fewer devices may compute more parts each,
            in fewer processes or more.
        init_from: Preset to start from instead of random weights: fine-tuning. With a
            larger ``config`` its biLM grows to that first.
        own_vocabulary: With ``init_from``, predict the tokens of the corpus's vocabulary and
            not of the preset's, which then need not hold a softmax.

    Raises:
        ValueError: If the folder holds a run and ``resume`` is False, or one that began with
            other settings or another corpus; if the corpus is not a prepared one; if
            ``save_every`` or ``devices`` is not 1 or more; if there is neither ``config`` nor
            ``init_from`` for a new run, or a recipe of ``frozen_bilm`` and no ``init_from``.

    Example:

    >>> from keras_elmo.pretraining.prepare import prepare
    >>> from keras_elmo.pretraining.recipe import Recipe
    >>> _ = pathlib.Path("raw.txt").write_text("Dogs bark. Cats sleep.\n" * 500)
    >>> _ = prepare(["raw.txt"], "corpus", shards=2, progress=False)
    >>> config = keras_elmo.BiLMConfig(lstm_dim=8, projection_dim=4, filters=((1, 8),))
    >>> recipe = Recipe(steps=2, batch_tokens=64, negatives=None)
    >>> Pretraining("run", "corpus", config, recipe).run(progress=False)
    >>> read_run("run")[0].config.lstm_dim
    8

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
        save_every=500,
        devices=1,
        resume=False,
        init_from=None,
        own_vocabulary=False,
    ):
        for name, value in (("save_every", save_every), ("devices", devices)):
            if value < 1:
                raise ValueError(
                    f"Pretraining expects {name} to be 1 or more. Received: {name}={value}"
                )
        self.folder = RunFolder(folder)
        self.save_every = save_every
        self.share = current_share()
        self.parts = self.share.parts(devices)
        is_begun = self.folder.is_begun
        is_resumed = is_begun or (resume and self.folder.has_settings)
        if is_begun and not resume:
            raise ValueError(
                f"Pretraining expects a folder without a run. Received: {folder}, which holds "
                "a checkpoint. Resume it, or choose another folder"
            )
        if config is None and init_from is None and not is_resumed:
            raise ValueError(
                "Pretraining expects the config of a new run, or a preset to start from. "
                "Received: config=None, init_from=None"
            )
        if recipe.frozen_bilm and init_from is None and not is_resumed:
            raise ValueError(
                "Pretraining expects a preset to start from with frozen_bilm, as a biLM of random "
                "weights predicts nothing. Received: init_from=None"
            )
        corpus = pathlib.Path(corpus)
        files = sorted(corpus.glob("train-*.txt"))
        if not files:
            raise ValueError(
                f"Pretraining expects a folder of keras-elmo prepare. Received: {corpus}, which "
                "holds no train-*.txt"
            )
        origin = {
            "corpus": _digest(corpus / "vocab.txt", files),
            "init_from": init_from and str(init_from),
            "own_vocabulary": own_vocabulary,
            # Both decide what a position in the corpus means.
            "devices": devices,
            "backend": keras.backend.backend(),
        }
        keras.utils.set_random_seed(recipe.seed)
        self.settings = before = {name: getattr(recipe, name) for name in CHANGEABLE}
        if is_resumed:
            if init_from is None:  # it need not be given again
                stored = self.folder.read_settings()["origin"]
                origin |= {name: stored[name] for name in ("init_from", "own_vocabulary")}
            self.folder.check_same(config, recipe, origin)
            before = {name: getattr(self.folder.read_recipe(), name) for name in CHANGEABLE}
            config = self.folder.read_config()
        if is_begun:
            self.vocabulary = self.folder.read_vocabulary()
            self.model = BiLanguageModel(config, len(self.vocabulary), **model_settings(recipe))
        else:
            begin = origin["init_from"], origin["own_vocabulary"]
            self.model, self.vocabulary = _first_model(
                config, recipe, read_vocabulary(corpus / "vocab.txt"), *begin
            )
            config = self.model.config
        is_jax = keras.backend.backend() == "jax"
        batcher = Batcher(
            self.vocabulary,
            max_characters=config.max_characters_per_token,
            widest_filter=config.widest_filter,
            batch_tokens=recipe.batch_tokens,
            devices=devices,
            fixed_shapes=is_jax,
            parts=self.parts,
        )
        self._corpus = Corpus(files, batcher, recipe.max_tokens, recipe.seed)
        if recipe.steps is None:
            steps = self._corpus.steps(recipe.epochs, recipe.parts)
            self.recipe = dataclasses.replace(recipe, steps=steps, epochs=None)
        else:
            self.recipe = recipe
        self.model.bilm.trainable = not recipe.frozen_bilm
        self.optimizer = make_optimizer(self.recipe, Schedule(self.recipe))
        # JAX has its fixed shapes; for TensorFlow XLA would compile anew for every batch.
        self.model.compile(self.optimizer, jit_compile=is_jax)
        self.optimizer.build(self.model.trainable_variables)
        self.facts = {"step": 0, "tokens": 0, "seconds": 0.0, "position": START}
        self.facts["settings"] = before
        if is_begun:
            self.facts |= self.folder.load(self._variables())
            # What diverged may do better with what changed.
            self.optimizer.skipped_in_a_row.assign(0)
        self._scorer = Scorer(self.model, self.vocabulary)
        self._sample = _sample(corpus)
        if self.share.is_first:
            with self.folder.locked():
                self.folder.cut_log(self.facts["step"])
                self.folder.write_settings(config, recipe, origin, self.vocabulary)

    def _variables(self):
        return {"model": self.model.variables, "optimizer": self.optimizer.variables}

    def run(self, callbacks=(), progress=True) -> None:
        """Train to the last step of the recipe.

        Args:
            callbacks: Keras callbacks; one of their epochs is the steps between two
                checkpoints, and one that sets ``stop_training`` ends the run at its
                checkpoint. At the end of an epoch its checkpoint is being written:
                ``folder.writer.wait()`` waits for it.
            progress: Whether to show a progress bar.

        Raises:
            OSError: If another process trains in the folder, or a checkpoint could not be
                written.
            ValueError: If the run diverged: its last checkpoint is kept.
        """
        keeper = _Keeper(self, progress)
        with contextlib.ExitStack() as stack:
            stack.callback(keeper.bar.close)
            if self.share.is_first:
                stack.enter_context(self.folder.locked())
            stack.callback(self.folder.writer.wait)
            self._fit(keeper, callbacks)

    def _fit(self, keeper, callbacks):
        self._failure = None
        left = max(0, self.recipe.steps - self.facts["step"])
        whole, rest = left // self.save_every, left % self.save_every
        try:
            for epochs, steps in ((whole, self.save_every), (1, rest)):
                if epochs and steps:
                    keeper.ahead = collections.deque()
                    before = -(-self.facts["step"] // self.save_every)  # as TensorBoard counts
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

    def save(self) -> None:
        """Write the checkpoint."""
        self.begin_to_save()
        self.folder.writer.wait()

    def begin_to_save(self) -> None:
        """Begin to write the checkpoint, beside the training."""
        self.folder.writer.save(self._variables(), self.facts)

    def heldout_perplexity(self):
        """Return the joint perplexity of a sample of the held-out text, None if there is none."""
        return self._scorer.perplexity(self._sample)["perplexity"] if self._sample else None

    def skipped(self) -> tuple[int, int]:
        """Return how many updates were left out as not finite: in all, and the last in a row."""
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()
        counts = (self.optimizer.skipped, self.optimizer.skipped_in_a_row)
        total, in_a_row = (int(to_numpy(count)) for count in counts)
        return total, in_a_row

    def check(self) -> None:
        """Raise a ``ValueError`` if too many updates in a row were left out."""
        in_a_row = self.skipped()[1]
        if in_a_row >= _MOST_SKIPPED:
            raise self.diverged(f"the gradients of the last {in_a_row} updates are not finite")

    def diverged(self, sign) -> ValueError:
        """Return the error of a run that diverged, as a sign of it shows."""
        remedy = "Begin anew"
        with contextlib.suppress(OSError):  # what diverged is told
            self.folder.writer.wait()
        if self.folder.is_begun:
            remedy = f"The checkpoint in {self.folder.path} is from before: resume it"
        return ValueError(
            f"Training diverged: {sign}. Received at step {self.facts['step']}. "
            f"{remedy} with a lower learning_rate or clip_norm"
        )

    def changes(self) -> str:
        """Return what is other than at the last checkpoint, in words; "" if nothing is."""
        before = self.facts["settings"]
        return "; ".join(
            f"{name} {before[name]} -> {value}"
            for name, value in self.settings.items()
            if before[name] != value
        )

    def _feed(self, ahead):
        """Return the batches from the checkpoint on; ``ahead`` gets their tokens and positions."""

        def batches():
            try:
                for batch, tokens, position in self._corpus.batches(
                    self.facts["position"], self.facts["step"], self.recipe.parts
                ):
                    ahead.append((tokens, position))
                    yield batch
            except (OSError, ValueError) as error:
                self._failure = error
                raise

        if keras.backend.backend() != "tensorflow":
            return ((batch,) for batch in batches())
        import tensorflow as tf

        n = len(self.parts)
        spec = {
            "characters": tf.TensorSpec((n, None, None), tf.int32),
            "words": tf.TensorSpec((n, 2, None, None), tf.int32),
            "targets": tf.TensorSpec((n, 2, None, None), tf.int32),
            "weights": tf.TensorSpec((n, 2, None, None), tf.float32),
        }
        feed = tf.data.Dataset.from_generator(batches, output_signature=spec)
        if self.share.processes == 1:  # Keras shares it among the devices
            return feed.map(lambda batch: (batch,)).prefetch(4)

        def of_replicas(batch):
            """Return the batch of each device of this process."""
            first = [self.share.replicas, -1]
            return {
                name: tf.reshape(x, tf.concat([first, tf.shape(x)[1:]], axis=0))
                for name, x in batch.items()
            }

        feed = feed.map(of_replicas).unbatch().map(lambda batch: (batch,)).prefetch(4)
        strategy = tf.distribute.get_strategy()
        return strategy.distribute_datasets_from_function(lambda _: feed)


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
            disable=not (progress and run.share.is_first),
        )

    def on_train_batch_end(self, batch, logs=None):
        facts = self.run.facts
        tokens, facts["position"] = self.ahead.popleft()
        facts["step"] += 1
        facts["tokens"] += tokens
        self.new_tokens += tokens
        self.bar.update()
        if batch % 10 == 9:
            self.run.check()
            self.run.folder.writer.check()
            rate = self.new_tokens / (time.monotonic() - self.began)
            self.bar.set_postfix_str(f"loss {logs['loss']:.3f}, {rate:.0f} tokens/s")

    def on_epoch_end(self, epoch, logs=None):
        run, facts = self.run, self.run.facts
        run.check()
        skipped, in_a_row = run.skipped()
        if in_a_row and facts["step"] < run.recipe.steps:
            return  # the weights are in doubt until an update is good again
        weights = map(to_numpy, run.model.trainable_variables)
        if not all(np.isfinite(weight).all() for weight in weights):
            raise run.diverged("a weight is not finite")
        perplexity = run.heldout_perplexity()
        if perplexity is not None and not np.isfinite(perplexity):
            raise run.diverged(f"the held-out perplexity is {perplexity}")
        facts["seconds"] = time.monotonic() - self.started
        row = {
            "step": facts["step"],
            "tokens": facts["tokens"],
            "seconds": round(facts["seconds"], 1),
            "learning_rate": float(Schedule(run.recipe)(facts["step"])),
            "loss": logs["loss"],
            "perplexity": perplexity,
            "skipped": skipped,
            "change": run.changes(),
        }
        facts["settings"] = run.settings
        logs.update({k: v for k, v in row.items() if v is not None and k != "change"})
        if run.share.is_first:
            # The log first: a row without its checkpoint is cut when the run is resumed.
            run.folder.log(row)
            run.begin_to_save()


def _first_model(config, recipe, vocabulary, init_from, own_vocabulary):
    """Return the model that a run begins with, and its vocabulary."""
    settings = model_settings(recipe)
    if init_from is None:
        return BiLanguageModel(config, len(vocabulary), **settings), vocabulary
    wanted = vocabulary if own_vocabulary else None
    model, vocabulary = read_language_model(init_from, wanted, softmax_needed=False, **settings)
    if config not in (None, model.config):
        model = grow_language_model(model, config, **settings)
    return model, vocabulary


def read_run(folder):
    """Read the model of a run as of its last checkpoint.

    Returns:
        The ``BiLanguageModel``, its vocabulary, and the facts of the checkpoint: ``step``,
        ``tokens``, ``seconds``, and ``init_from``, the preset it began with, or None.

    Raises:
        FileNotFoundError: If the folder holds no checkpoint.
    """
    run = RunFolder(folder)
    origin = run.read_settings()["origin"]
    vocabulary = run.read_vocabulary()
    model = BiLanguageModel(run.read_config(), len(vocabulary), **model_settings(run.read_recipe()))
    facts = run.load({"model": model.variables})
    return model, vocabulary, {**facts, "init_from": origin["init_from"]}


def model_settings(recipe) -> dict:
    """Return the arguments of ``BiLanguageModel`` that a recipe decides."""
    return {
        "n_negatives": recipe.negatives,
        "dropout": recipe.dropout,
        "product_dtype": recipe.precision,
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
