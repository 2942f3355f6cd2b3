"""Train a ``BiLanguageModel`` on a prepared corpus, with checkpoints to resume from."""

import contextlib
import dataclasses
import hashlib
import itertools
import math
import pathlib
import signal
import threading
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.vocabulary import read_vocabulary
from keras_elmo.presets import TOKENIZER_FILE, Preset, absolute_preset
from keras_elmo.pretraining.corpus import Batcher, Corpus
from keras_elmo.pretraining.distribution import (
    batches_of_replicas,
    count_devices,
    rows_of_process,
    this_process,
)
from keras_elmo.pretraining.language_model import BiLanguageModel
from keras_elmo.pretraining.language_model_files import read_language_model
from keras_elmo.pretraining.optimizers import make_optimizer
from keras_elmo.pretraining.recipe import Recipe, Schedule
from keras_elmo.pretraining.run_folder import RunFolder, to_numpy
from keras_elmo.pretraining.scores import Scorer
from keras_elmo.pretraining.softmax import draws_fit
from keras_elmo.text_input import read_lines, read_sentences
from keras_elmo.utils.checks import check_whole, invalid
from keras_elmo.utils.files import PathLike, digest_of, local_path, read_object
from keras_elmo.utils.progress import progress_bar

# Held-out tokens that are scored at every checkpoint.
_SAMPLE_TOKENS = 10_000
# Lines that show whether the vocabulary is ordered by frequency.
_LINES = 1000


class Pretraining:
    r"""Train a ``BiLanguageModel`` on a corpus, and keep the run in a folder.

    A run uses several devices if they are set up before it is made: on JAX by
    ``keras.distribution.set_distribution(keras.distribution.DataParallel())``, after
    ``keras.distribution.initialize()`` for several hosts; on TensorFlow inside the ``scope()`` of
    a ``tf.distribute.MirroredStrategy``. The devices share each batch. All hosts read the corpus
    and the folder; only the first one writes.

    Args:
        folder: str or path. Folder of the run; made if it does not exist.
        corpus: str or path. Folder that ``prepare`` made.
        config: BiLMConfig or None. Sizes of the biLM; None for the sizes of ``init_from``, or of
            the resumed run.
        recipe: Recipe. How the biLM is trained.
        save_every: int. Steps between checkpoints. A killed run loses at most these steps.
        resume: bool. Continue from the checkpoint in the folder, if there is one. The recipe may
            change ``steps`` or ``epochs``, ``learning_rate``, ``decay``, ``decay_shape`` and
            ``clip_norm``. All other settings, the corpus and the backend must be equal.
        init_from: str, path or None. Preset to start from (fine-tuning).
        own_vocabulary: bool. With ``init_from``, predict the tokens of the corpus instead of the
            preset's, which then needs no softmax.

    Raises:
        ValueError: If the folder contains a run and ``resume`` is False, or a run with other
            settings or another corpus; if the corpus is not a prepared one; if ``save_every`` is
            less than 1; if a new run has neither ``config`` nor ``init_from``, or a ``config``
            other than the preset's, or ``frozen_bilm`` without ``init_from``.

    Examples:
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
        folder: PathLike,
        corpus: PathLike,
        config: BiLMConfig | None,
        recipe: Recipe,
        *,
        save_every: int = 500,
        resume: bool = False,
        init_from: PathLike | None = None,
        own_vocabulary: bool = False,
    ) -> None:
        self.save_every = check_whole("Pretraining", "save_every", save_every)
        self.folder = RunFolder(folder)
        corpus = local_path(corpus)
        files = sorted(corpus.glob("train-*.txt"))
        if not files:
            raise invalid(
                "Pretraining expects a folder of keras-elmo prepare",
                f"{corpus}, without train-*.txt",
            )
        resumes = self._check_folder(resume)
        self._origin: dict[str, Any] = {
            "corpus": _digest(files),
            "init_from": absolute_preset(init_from),
            "own_vocabulary": own_vocabulary,
            "backend": keras.backend.backend(),
        }
        if resume and self.folder.has_settings:
            given = dict(self._origin)
            if init_from is None:  # the caller need not repeat the preset
                del given["init_from"], given["own_vocabulary"]
            config, _, self._origin = self.folder.check_same(config, recipe, given)
        keras.utils.set_random_seed(recipe.seed)
        if resumes:
            assert config is not None
            self.vocabulary = self.folder.read_vocabulary()
            self.model = BiLanguageModel(config, len(self.vocabulary), **model_settings(recipe))
        else:
            self.model, self.vocabulary = _first_model(config, recipe, corpus, self._origin)
        self._check_order(files[0], recipe)
        self.devices = count_devices()
        batcher = Batcher.for_config(
            self.model.config,
            self.vocabulary,
            batch_tokens=recipe.batch_tokens,
            devices=self.devices,
        )
        self._corpus = Corpus(files, batcher, recipe.max_tokens, recipe.seed)
        self._given, self.steps = recipe, recipe.steps or 0
        if recipe.epochs is not None:
            self.steps = self._corpus.steps(recipe.epochs)
        self.recipe = dataclasses.replace(recipe, steps=self.steps, epochs=None)
        self.model.bilm.trainable = not recipe.frozen_bilm
        self.optimizer = make_optimizer(self.recipe, Schedule(self.recipe))
        # On TensorFlow, XLA would compile every batch anew; JAX gets batches of fixed shapes.
        self.model.compile(self.optimizer, jit_compile=keras.backend.backend() == "jax")
        self.optimizer.build(self.model.trainable_variables)
        self.facts: dict[str, Any] = {
            **{"step": 0, "tokens": 0, "seconds": 0.0},
            **{"perplexity": None, "position": (0, 0, 0)},
        }
        if resumes:
            self.facts = self.folder.load(self._variables())
        self._scorer = Scorer(self.model, self.vocabulary)
        self._sample = _sample(corpus)
        self._tokenizer = _tokenizer(self.folder, corpus, self._origin["init_from"])

    def _check_folder(self, resume: bool) -> bool:
        """Return whether the run continues from a checkpoint."""
        folder, name = self.folder, str(self.folder.path)
        if folder.has_checkpoint and not resume:
            raise invalid(
                "Pretraining expects a folder without a run",
                f"{name}, with a checkpoint",
                "Resume it, or choose another folder",
            )
        if not folder.has_settings and (folder.path / "vocab.txt").exists():
            raise invalid(
                "Pretraining expects a new folder, or one with a run",
                f"{name}, with the vocab.txt of a corpus or a preset",
                "Choose another folder",
            )
        return folder.has_checkpoint

    def _check_order(self, file: pathlib.Path, recipe: Recipe) -> None:
        """Warn if the sampled softmax would draw the wrong tokens."""
        if recipe.negatives is None or recipe.negatives >= len(self.vocabulary):
            return
        lines = itertools.islice(read_lines(file), _LINES)
        tokens = [t for line in lines for t in line.split()]
        ids = {token: i for i, token in enumerate(self.vocabulary)}
        if not draws_fit(np.array([ids[t] for t in tokens if t in ids], int), len(ids)):
            warnings.warn(
                "The sampled softmax expects a vocabulary with the most frequent tokens first. "
                "Received: one in another order, which makes training worse. Prepare the corpus "
                "with this vocabulary and train with own_vocabulary, or use the full softmax "
                "(negatives=None)",
                stacklevel=3,
            )

    def _variables(self) -> dict:
        return {"model": self.model.variables, "optimizer": self.optimizer.variables}

    def run(self, callbacks: Iterable = (), progress: bool = True) -> None:
        """Train to the last step of the recipe.

        After Ctrl-C or SIGTERM the run writes a checkpoint and raises ``KeyboardInterrupt``.

        Args:
            callbacks: iterable of Keras callbacks. One epoch is the steps between two
                checkpoints. A callback that sets ``stop_training`` ends the run with a
                checkpoint.
            progress: bool. Whether to show a progress bar.

        Raises:
            OSError: If another process trains in the folder, or a checkpoint cannot be written.
            ValueError: If the run diverged; the last checkpoint stays.
        """
        is_first = this_process()[0] == 0
        self.model.stop_training = False
        keeper = _Keeper(self, is_first, progress)
        with contextlib.ExitStack() as stack:
            stack.callback(keeper.bar.close)
            if is_first:
                stack.enter_context(self.folder.locked())
                self.folder.cut_log(self.facts["step"])
                settings = self.model.config, self._given, self._origin
                self.folder.write_settings(*settings, self.vocabulary, self._tokenizer)
            interrupts = keeper.interrupts = stack.enter_context(_stopped_by_signals(self.model))
            # Keras wants equally many steps in every epoch, so the last steps are apart.
            whole, rest = divmod(max(0, self.steps - self.facts["step"]), self.save_every)
            for epochs, steps in ((whole, self.save_every), (1, rest)):
                if epochs and steps and not (interrupts or self.model.stop_training):
                    self._fit(epochs, steps, [keeper, *callbacks])
        if interrupts:
            raise KeyboardInterrupt(*interrupts)

    def _fit(self, epochs: int, steps: int, callbacks: list) -> None:
        self.ahead: dict[int, tuple] = {}
        self._failure: Exception | None = None
        # TensorBoard counts epochs from the start of the run.
        before = -(-self.facts["step"] // self.save_every)
        try:
            self.model.fit(
                self._feed(),
                steps_per_epoch=steps,
                initial_epoch=before,
                epochs=before + epochs,
                shuffle=False,  # the feed shuffles
                verbose=0,
                callbacks=callbacks,
            )
        except Exception:
            # tf.data keeps only the message; raise the original error again.
            if self._failure is not None:
                raise self._failure from None
            raise

    def _feed(self) -> Any:
        """Return the batches after the checkpoint; put tokens and position of each step ahead."""
        first, position = self.facts["step"] + 1, self.facts["position"]
        is_tensorflow = keras.backend.backend() == "tensorflow"

        def batches() -> Iterator[tuple[dict]]:
            try:
                for step, found in enumerate(self._corpus.batches(position), first):
                    batch, self.ahead[step] = found[0], found[1:]
                    if is_tensorflow and self.devices > 1:
                        yield from ((x,) for x in batches_of_replicas(batch, self.devices))
                    else:
                        yield (rows_of_process(batch),)
            except (OSError, ValueError) as error:
                self._failure = error
                raise

        if not is_tensorflow:
            return batches()
        import tensorflow as tf

        axes = {"characters": 2, "words": 3, "targets": 3, "weights": 3}
        spec = {
            name: tf.TensorSpec([None] * n, tf.float32 if name == "weights" else tf.int32)
            for name, n in axes.items()
        }
        feed = tf.data.Dataset.from_generator(batches, output_signature=(spec,)).prefetch(4)
        if self.devices == 1:
            return feed
        # Each replica takes the next element of the feed.
        strategy = tf.distribute.get_strategy()
        return strategy.distribute_datasets_from_function(lambda _: feed)

    def heldout_perplexity(self) -> float | None:
        """Return the joint perplexity of a held-out sample, None without held-out text."""
        return self._scorer.perplexity(self._sample)["perplexity"] if self._sample else None


class _Keeper(keras.callbacks.Callback):
    """Count steps, log, score held-out text and write checkpoints."""

    def __init__(self, run: Pretraining, is_first: bool, progress: bool) -> None:
        super().__init__()
        self.run, self.is_first = run, is_first
        self.started = time.monotonic() - run.facts["seconds"]
        self.new_tokens, self.began = 0, time.monotonic()
        self.interrupts: list[int] = []
        self.bar = progress_bar(
            progress and is_first,
            total=run.steps,
            initial=run.facts["step"],
            unit=" steps",
            desc="pretraining",
        )

    def on_train_batch_end(self, batch: int, logs: dict) -> None:
        facts = self.run.facts
        facts["step"] += 1
        tokens, facts["position"] = self.run.ahead.pop(facts["step"])
        facts["tokens"] += tokens
        self.new_tokens += tokens
        self.bar.update()
        if self.interrupts:  # perhaps before the first step, where fit resets stop_training
            self.model.stop_training = True
        if batch % 10 == 9:
            self._check("loss", logs["loss"])
            rate = self.new_tokens / (time.monotonic() - self.began)
            self.bar.set_postfix_str(f"loss {logs['loss']:.3f}, {rate:.0f} tokens/s")

    def on_epoch_end(self, epoch: int, logs: dict) -> None:
        run, facts = self.run, self.run.facts
        self._check("loss", logs["loss"])
        self.bar.set_description("measuring held-out text")
        # The loss is from before the last update, the perplexity from after it.
        facts["perplexity"] = run.heldout_perplexity()
        if facts["perplexity"] is not None:
            self._check("held-out perplexity", facts["perplexity"])
        for variable in run.model.trainable_variables:
            self._check("sum of the weights", float(to_numpy(variable).sum()))
        facts["seconds"] = time.monotonic() - self.started
        row = {
            "step": facts["step"],
            "tokens": facts["tokens"],
            "seconds": round(facts["seconds"], 1),
            "learning_rate": float(Schedule(run.recipe)(facts["step"] - 1)),
            "loss": logs["loss"],
            "perplexity": facts["perplexity"],
        }
        logs.update({name: value for name, value in row.items() if value is not None})
        if self.is_first:
            self.bar.set_description("writing the checkpoint")
            # Log first: if no checkpoint follows, resuming removes the row.
            run.folder.append_to_log(row)
            run.folder.save(run._variables(), facts)
        self.bar.set_description("pretraining")

    def _check(self, name: str, value: float) -> None:
        """Raise a ``ValueError`` if the run diverged."""
        if math.isfinite(value):
            return
        folder = self.run.folder
        advice = (
            f"Resume the checkpoint in {folder.path}" if folder.has_checkpoint else "Begin anew"
        )
        raise invalid(
            f"Training diverged: expected a finite {name}",
            f"{value} at step {self.run.facts['step']}",
            f"{advice} with a lower learning_rate or clip_norm",
        )


@contextlib.contextmanager
def _stopped_by_signals(model: keras.Model) -> Iterator[list[int]]:
    """Stop training after the present step at Ctrl-C or SIGTERM; yield the signals received.

    A second signal acts as it did before.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():  # the others get no signals
        yield received
        return

    def stop(number: int, _: object) -> None:
        received.append(number)
        model.stop_training = True
        signal.signal(number, handlers[number])

    signals = signal.SIGINT, signal.SIGTERM
    handlers: dict[int, Any] = {number: signal.getsignal(number) for number in signals}
    for number in handlers:
        signal.signal(number, stop)
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _first_model(
    config: BiLMConfig | None, recipe: Recipe, corpus: pathlib.Path, origin: dict
) -> tuple[BiLanguageModel, list[str]]:
    """Return the model of a new run, and its vocabulary."""
    settings, vocabulary = model_settings(recipe), read_vocabulary(corpus / "vocab.txt")
    preset = origin["init_from"]
    if preset is None:
        if config is None:
            expected = "the config of a new run, or a preset to start from"
            raise invalid(f"Pretraining expects {expected}", "config=None, init_from=None")
        if recipe.frozen_bilm:
            raise invalid(
                "Pretraining expects a preset to start from with frozen_bilm, because a random "
                "biLM predicts nothing",
                "init_from=None",
            )
        return BiLanguageModel(config, len(vocabulary), **settings), vocabulary
    wanted = vocabulary if origin["own_vocabulary"] else None
    model, vocabulary = read_language_model(preset, wanted, softmax_needed=False, **settings)
    if config not in (None, model.config):
        raise invalid(
            "Pretraining expects a preset of the same sizes as the config",
            f"{preset}, with {model.config}",
            "Leave out the sizes. examples/grow.py makes a larger preset of a preset",
        )
    return model, vocabulary


def read_run(folder: PathLike) -> tuple[BiLanguageModel, list[str], dict]:
    """Read the model of a run at its last checkpoint.

    Returns:
        The ``BiLanguageModel``, its vocabulary, and the facts of the checkpoint: ``step``,
        ``tokens``, ``seconds``, ``perplexity`` of the held-out sample or None, and
        ``init_from``, the first preset or None.

    Raises:
        FileNotFoundError: If the folder contains no checkpoint.
    """
    run = RunFolder(folder)
    config, recipe, origin = run.read_settings()
    vocabulary = run.read_vocabulary()
    model = BiLanguageModel(config, len(vocabulary), **model_settings(recipe))
    facts = run.load({"model": model.variables})
    return model, vocabulary, {**facts, "init_from": origin["init_from"]}


def model_settings(recipe: Recipe) -> dict:
    """Return the arguments of ``BiLanguageModel`` that come from a recipe."""
    return {
        "n_negatives": recipe.negatives,
        "dropout": recipe.dropout,
        "product_dtype": recipe.precision,
        "seed": recipe.seed,
        "name": "lm",
    }


def _digest(files: list[pathlib.Path]) -> str:
    """Return a digest of the files of a corpus."""
    digests = [digest_of(file) for file in (*files, files[0].parent / "vocab.txt")]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _tokenizer(folder: RunFolder, corpus: pathlib.Path, init_from: Any) -> dict | None:
    """Return the tokenizer of a run, a corpus, or the preset that a run begins with, if known."""
    if folder.has_checkpoint:
        return folder.read_tokenizer()
    if (corpus / TOKENIZER_FILE).is_file():
        return read_object(corpus / TOKENIZER_FILE, "Tokenizer file")
    if init_from is not None:
        with contextlib.suppress(ValueError):  # the tokenizer is not known
            return {"name": Preset(init_from).read_tokenizer()}
    return None


def _sample(corpus: pathlib.Path) -> list[list[str]]:
    """Return held-out sentences spread over all files of a corpus."""
    files = sorted(corpus.glob("heldout-*.txt"))
    sentences = [sentence for file in files for sentence in read_sentences(file)]
    tokens = sum(map(len, sentences))
    return sentences[:: max(1, tokens // _SAMPLE_TOKENS)]
