"""Train a ``BiLanguageModel`` on a prepared corpus, with checkpoints to resume from."""

import collections
import contextlib
import dataclasses
import hashlib
import json
import pathlib
import time
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.vocabulary import read_vocabulary
from keras_elmo.presets import Preset, absolute_preset
from keras_elmo.pretraining.checkpoint import to_numpy
from keras_elmo.pretraining.corpus import START, Batcher, Corpus
from keras_elmo.pretraining.devices import current_share
from keras_elmo.pretraining.growth import grow_language_model
from keras_elmo.pretraining.language_model import BiLanguageModel
from keras_elmo.pretraining.language_model_files import read_language_model
from keras_elmo.pretraining.optimizers import make_optimizer
from keras_elmo.pretraining.recipe import CHANGEABLE, Recipe, Schedule
from keras_elmo.pretraining.run_folder import RunFolder, read_tokenizer
from keras_elmo.pretraining.scores import Scorer
from keras_elmo.text_input import read_sentences
from keras_elmo.utils.checks import check_whole
from keras_elmo.utils.files import PathLike, digest_of, local_path
from keras_elmo.utils.progress import progress_bar

# Held-out tokens that are scored at every checkpoint.
_SAMPLE_TOKENS = 10_000
# The run stops after this many skipped updates in a row.
_MOST_SKIPPED = 20


class Pretraining:
    r"""Train a ``BiLanguageModel`` on a corpus, and keep the run in a folder.

    With several processes (``sharing``) each process computes its parts of the batches. All
    processes read the corpus and the folder; only the first process writes.

    Args:
        folder: str or path. Folder of the run; made if it does not exist.
        corpus: str or path. Folder that ``prepare`` made.
        config: BiLMConfig or None. Sizes of the biLM; None for the sizes of ``init_from``, or of
            the resumed run.
        recipe: Recipe. How the biLM is trained.
        save_every: int. Steps between checkpoints. A killed run loses at most these steps, and
            the steps while the last checkpoint was being written.
        devices: int. Number of parts of a batch. Inside ``sharing(devices)`` each device computes
            one part.
        resume: bool. Continue from the checkpoint in the folder, if there is one. The recipe may
            change ``steps`` or ``epochs``, ``learning_rate``, ``decay``, ``decay_shape`` and
            ``clip_norm``; the log records the change. All other settings, the backend and
            the number ``devices`` must be equal, but fewer GPUs may share the parts.
        init_from: str, path or None. Preset to start from (fine-tuning). With a larger
            ``config`` its biLM grows first.
        own_vocabulary: bool. With ``init_from``, predict the tokens of the corpus instead of the
            preset's, which then needs no softmax.

    Raises:
        ValueError: If the folder contains a run and ``resume`` is False, or a run with other
            settings, another corpus or another vocabulary; if the corpus is not a prepared one;
            if ``save_every`` or ``devices`` is less than 1; if a new run has neither ``config``
            nor ``init_from``, or ``frozen_bilm`` without ``init_from``.

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
        devices: int = 1,
        resume: bool = False,
        init_from: PathLike | None = None,
        own_vocabulary: bool = False,
    ) -> None:
        self.save_every = check_whole("Pretraining", "save_every", save_every)
        devices = check_whole("Pretraining", "devices", devices)
        self.folder = RunFolder(folder)
        self._resumes = self.folder.has_checkpoint
        self.share = current_share()
        self.parts = self.share.parts(devices)
        corpus = local_path(corpus)
        files = sorted(corpus.glob("train-*.txt"))
        if not files:
            raise ValueError(
                "Pretraining expects a folder of keras-elmo prepare. "
                f"Received: {corpus}, without train-*.txt"
            )
        origin = {
            "corpus": _digest(files),
            "init_from": absolute_preset(init_from),
            "own_vocabulary": own_vocabulary,
            # The position in the corpus depends on these two.
            "devices": devices,
            "backend": keras.backend.backend(),
        }
        keras.utils.set_random_seed(recipe.seed)
        self.settings = _changeable(recipe)
        config, stored_recipe, origin = self._stored_settings(config, recipe, origin, resume)
        self.model, self.vocabulary = self._make_model(config, recipe, origin, corpus)
        batcher = Batcher.for_config(
            self.model.config,
            self.vocabulary,
            batch_tokens=recipe.batch_tokens,
            devices=devices,
            parts=self.parts,
        )
        self._corpus = Corpus(files, batcher, recipe.max_tokens, recipe.seed)
        self.recipe, self.steps = recipe, recipe.steps or 0
        if recipe.epochs is not None:
            self.steps = self._corpus.steps(recipe.epochs, recipe.parts)
            self.recipe = dataclasses.replace(recipe, steps=self.steps, epochs=None)
        self.model.bilm.trainable = not recipe.frozen_bilm
        self.optimizer = make_optimizer(self.recipe, Schedule(self.recipe))
        # On TensorFlow, XLA would compile every batch anew; JAX gets batches of fixed shapes.
        self.model.compile(self.optimizer, jit_compile=keras.backend.backend() == "jax")
        self.optimizer.build(self.model.trainable_variables)
        digests = {"corpus": _digest_contents(files), **_digest_vocabulary(self.vocabulary)}
        self.facts = self._load_facts(stored_recipe, digests)
        self._scorer = Scorer(self.model, self.vocabulary)
        self._sample = _sample(corpus)
        if self.share.is_first:
            with self.folder.locked():
                self.folder.cut_log(self.facts["step"])
                recorded = read_tokenizer(self.folder.path) if self._resumes else None
                tokenizer = recorded or _tokenizer(corpus, origin["init_from"])
                self.folder.write_settings(
                    self.model.config, recipe, origin, self.vocabulary, tokenizer
                )
                self._settings = self.folder.read_settings()

    def _stored_settings(
        self, config: BiLMConfig | None, recipe: Recipe, origin: dict, resume: bool
    ) -> tuple[BiLMConfig | None, Recipe, dict]:
        """Return the settings of the run in the folder, or the given ones if there is none."""
        if self._resumes and not resume:
            raise ValueError(
                f"Pretraining expects a folder without a run. Received: {self.folder.path}, with a "
                "checkpoint. Resume it, or choose another folder"
            )
        # The other processes may see a part of the files that the first one writes.
        if self.share.is_first and (others := self.folder.files_of_others()):
            raise ValueError(
                "Pretraining expects a new folder, or one with a run. Received: "
                f"{self.folder.path}, with {', '.join(others)}, which the run would replace. "
                "Choose another folder"
            )
        if not (self._resumes or (resume and self.folder.has_settings)):
            return config, recipe, origin
        if origin["init_from"] is None:  # the caller need not repeat the preset
            left_out = "init_from", "own_vocabulary"
            origin = {name: value for name, value in origin.items() if name not in left_out}
        return self.folder.check_same(config, recipe, origin)

    def _make_model(
        self, config: BiLMConfig | None, recipe: Recipe, origin: dict, corpus: pathlib.Path
    ) -> tuple[BiLanguageModel, list[str]]:
        """Return the model, without the weights of a checkpoint, and its vocabulary."""
        if self._resumes:
            assert config is not None  # the folder has one
            vocabulary = self.folder.read_vocabulary()
            return BiLanguageModel(config, len(vocabulary), **model_settings(recipe)), vocabulary
        vocabulary = read_vocabulary(corpus / "vocab.txt")
        start = origin["init_from"], origin["own_vocabulary"]
        return _first_model(config, recipe, vocabulary, *start)

    def _load_facts(self, stored_recipe: Recipe, digests: dict[str, str]) -> dict[str, Any]:
        """Read the checkpoint, if there is one. Return its facts, or the facts of a new run."""
        facts = {
            "step": 0,
            "tokens": 0,
            "seconds": 0.0,
            "position": START,
            "settings": _changeable(stored_recipe),
        }
        if self._resumes:
            facts |= self.folder.load(self._variables(), digests)
            # Reset the skip count: the settings may have changed.
            self.optimizer.skipped_in_a_row.assign(0)
        return {**facts, "digests": digests}

    def _variables(self) -> dict:
        return {"model": self.model.variables, "optimizer": self.optimizer.variables}

    def run(self, callbacks: Iterable = (), progress: bool = True) -> None:
        """Train to the last step of the recipe.

        Args:
            callbacks: iterable of Keras callbacks. One epoch is the steps between two
                checkpoints. A callback that sets ``stop_training`` ends the run at the next
                checkpoint. ``folder.writer.wait()`` waits until the checkpoint is written.
            progress: bool. Whether to show a progress bar.

        Raises:
            OSError: If another process trains in the folder, or a checkpoint could not be
                written.
            ValueError: If the run diverged; the last checkpoint stays. If another ``Pretraining``
                has begun in the folder since, with other settings.
        """
        keeper = _Keeper(self, progress)
        with contextlib.ExitStack() as stack:
            stack.callback(keeper.bar.close)
            if self.share.is_first:
                stack.enter_context(self.folder.locked())
                if self.folder.read_settings() != self._settings:
                    raise ValueError(
                        f"Expected {self.folder.path} to have the settings of this run. Received: "
                        "the settings of a later run. Make a new Pretraining, in another folder"
                    )
            stack.callback(self.folder.writer.wait)
            self._fit(keeper, callbacks)

    def _fit(self, keeper: "_Keeper", callbacks: Iterable) -> None:
        self._failure: Exception | None = None
        whole, rest = divmod(max(0, self.steps - self.facts["step"]), self.save_every)
        try:
            for epochs, steps in ((whole, self.save_every), (1, rest)):
                if not (epochs and steps):
                    continue
                keeper.ahead = collections.deque()
                # TensorBoard counts epochs from the start of the run.
                before = -(-self.facts["step"] // self.save_every)
                self.model.fit(
                    self._feed(keeper.ahead),
                    steps_per_epoch=steps,
                    initial_epoch=before,
                    epochs=before + epochs,
                    shuffle=False,  # the feed shuffles
                    verbose=0,
                    callbacks=[keeper, *callbacks],
                )
                if self.model.stop_training:
                    return
        except Exception:
            # tf.data keeps only the message; raise the original error again.
            if self._failure is not None:
                raise self._failure from None
            raise

    def heldout_perplexity(self) -> float | None:
        """Return the joint perplexity of a held-out sample, None without held-out text."""
        return self._scorer.perplexity(self._sample)["perplexity"] if self._sample else None

    def skipped(self) -> tuple[int, int]:
        """Return how many updates were skipped, as not finite: in all, and in a row until now."""
        if keras.backend.backend() == "jax":
            self.model.jax_state_sync()
        counts = self.optimizer.skipped, self.optimizer.skipped_in_a_row
        return int(to_numpy(counts[0])), int(to_numpy(counts[1]))

    def check(self) -> None:
        """Raise a ``ValueError`` if too many updates in a row were skipped."""
        in_a_row = self.skipped()[1]
        if in_a_row >= _MOST_SKIPPED:
            raise self.diverged(f"the gradients of the last {in_a_row} updates are not finite")

    def diverged(self, sign: str) -> ValueError:
        """Return the error of a run that diverged."""
        with contextlib.suppress(OSError):  # the divergence is the error to raise
            self.folder.writer.wait()
        remedy = "Begin anew"
        if self.folder.has_checkpoint:
            remedy = f"Resume the earlier checkpoint in {self.folder.path}"
        return ValueError(
            f"Training diverged: {sign}. Received at step {self.facts['step']}. "
            f"{remedy} with a lower learning_rate or clip_norm"
        )

    def changes(self) -> str:
        """Describe the settings that changed since the last checkpoint; "" if none did."""
        before = self.facts["settings"]
        return "; ".join(
            f"{name} {before[name]} -> {value}"
            for name, value in self.settings.items()
            if before[name] != value
        )

    def _feed(self, ahead: collections.deque) -> Any:
        """Return the batches after the checkpoint; append their tokens and positions to ahead."""

        def batches() -> Iterator[tuple[dict]]:
            try:
                for batch, tokens, position in self._corpus.batches(
                    self.facts["position"], self.facts["step"], self.recipe.parts
                ):
                    ahead.append((tokens, position))
                    yield (batch,)
            except (OSError, ValueError) as error:
                self._failure = error
                raise

        if keras.backend.backend() != "tensorflow":
            return batches()
        import tensorflow as tf

        axes = {"characters": 2, "words": 3, "targets": 3, "weights": 3}
        spec = {
            name: tf.TensorSpec(
                (len(self.parts), *[None] * n), tf.float32 if name == "weights" else tf.int32
            )
            for name, n in axes.items()
        }
        feed = tf.data.Dataset.from_generator(batches, output_signature=(spec,))
        if self.share.processes == 1:  # Keras distributes the batch
            return feed.prefetch(4)

        def of_replicas(batch: dict) -> tuple[dict]:
            """Return the batch of each device of this process."""
            first = [self.share.replicas, -1]
            parts = {
                name: tf.reshape(x, tf.concat([first, tf.shape(x)[1:]], axis=0))
                for name, x in batch.items()
            }
            return (parts,)

        feed = feed.map(of_replicas).unbatch().prefetch(4)
        strategy = tf.distribute.get_strategy()
        return strategy.distribute_datasets_from_function(lambda _: feed)


class _Keeper(keras.callbacks.Callback):
    """Count steps, log, score held-out text and write checkpoints."""

    def __init__(self, run: Pretraining, progress: bool) -> None:
        super().__init__()
        self.run = run
        self.ahead: collections.deque = collections.deque()
        self.started = time.monotonic() - run.facts["seconds"]
        self.new_tokens, self.began = 0, time.monotonic()
        self.bar = progress_bar(
            progress and run.share.is_first,
            total=run.steps,
            initial=run.facts["step"],
            unit=" steps",
            desc="pretraining",
        )

    def on_train_batch_end(self, batch: int, logs: dict) -> None:
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

    def on_epoch_end(self, epoch: int, logs: dict) -> None:
        run, facts = self.run, self.run.facts
        run.check()
        skipped, in_a_row = run.skipped()
        if in_a_row and facts["step"] < run.steps:
            return  # these weights gave gradients that are not finite
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
            "learning_rate": float(Schedule(run.recipe)(facts["step"] - 1)),
            "loss": logs["loss"],
            "perplexity": perplexity,
            "skipped": skipped,
            "change": run.changes(),
        }
        facts["settings"] = run.settings
        logs.update({k: v for k, v in row.items() if v is not None and k != "change"})
        if run.share.is_first:
            # Log first: if no checkpoint follows, resuming removes the row.
            run.folder.log(row)
            run.folder.writer.save(run._variables(), facts)


def _changeable(recipe: Recipe) -> dict:
    return {name: getattr(recipe, name) for name in CHANGEABLE}


def _first_model(
    config: BiLMConfig | None,
    recipe: Recipe,
    vocabulary: list[str],
    init_from: str | None,
    own_vocabulary: bool,
) -> tuple[BiLanguageModel, list[str]]:
    """Return the model of a new run, and its vocabulary."""
    settings = model_settings(recipe)
    if init_from is None:
        if config is None:
            raise ValueError(
                "Pretraining expects the config of a new run, or a preset to start from. "
                "Received: config=None, init_from=None"
            )
        if recipe.frozen_bilm:
            raise ValueError(
                "Pretraining expects a preset to start from with frozen_bilm, because a random "
                "biLM predicts nothing. Received: init_from=None"
            )
        return BiLanguageModel(config, len(vocabulary), **settings), vocabulary
    wanted = vocabulary if own_vocabulary else None
    model, vocabulary = read_language_model(init_from, wanted, softmax_needed=False, **settings)
    if config not in (None, model.config):
        model = grow_language_model(model, config, **settings)
    return model, vocabulary


def read_run(folder: PathLike) -> tuple[BiLanguageModel, list[str], dict]:
    """Read the model of a run at its last checkpoint.

    Returns:
        The ``BiLanguageModel``, its vocabulary, and the facts of the checkpoint: ``step``,
        ``tokens``, ``seconds``, and ``init_from``, the first preset or None.

    Raises:
        FileNotFoundError: If the folder contains no checkpoint.
    """
    run = RunFolder(folder)
    config, recipe, origin = run.read_settings()
    vocabulary = run.read_vocabulary()
    model = BiLanguageModel(config, len(vocabulary), **model_settings(recipe))
    facts = run.load({"model": model.variables}, _digest_vocabulary(vocabulary))
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
    """Return a digest of the vocabulary, and of the names and sizes of the files."""
    digest = hashlib.sha256((files[0].parent / "vocab.txt").read_bytes())
    digest.update(json.dumps([(file.name, file.stat().st_size) for file in files]).encode())
    return digest.hexdigest()


def _tokenizer(corpus: pathlib.Path, init_from: Any) -> dict | None:
    """Return the tokenizer of a corpus, or of the preset that a run begins with, if known."""
    if tokenizer := read_tokenizer(corpus):
        return tokenizer
    if init_from is not None:
        # The tokenizer is not known, or the preset is gone.
        with contextlib.suppress(ValueError, OSError, ImportError):
            return {"name": Preset(init_from).read_tokenizer()}
    return None


def _digest_contents(files: list[pathlib.Path]) -> str:
    """Return a digest of the contents of the files, in their order."""
    return hashlib.sha256("".join(map(digest_of, files)).encode()).hexdigest()


def _digest_vocabulary(tokens: list[str]) -> dict[str, str]:
    return {"vocabulary": hashlib.sha256("\n".join(tokens).encode()).hexdigest()}


def _sample(corpus: pathlib.Path) -> list[list[str]]:
    """Return held-out sentences spread over all files of a corpus."""
    files = sorted(corpus.glob("heldout-*.txt"))
    sentences = [sentence for file in files for sentence in read_sentences(file)]
    tokens = sum(map(len, sentences))
    return sentences[:: max(1, tokens // _SAMPLE_TOKENS)]
