"""Train a ``BiLanguageModel`` on a prepared corpus, with checkpoints to resume from."""

import collections
import contextlib
import dataclasses
import hashlib
import math
import pathlib
import time
from collections.abc import Iterable, Iterator
from typing import Any

import keras

from keras_elmo.config import BiLMConfig
from keras_elmo.formats.vocabulary import read_vocabulary
from keras_elmo.presets import absolute_preset
from keras_elmo.pretraining.corpus import Batcher, Corpus
from keras_elmo.pretraining.distribution import (
    batches_of_replicas,
    count_devices,
    rows_of_process,
    this_process,
)
from keras_elmo.pretraining.language_model import BiLanguageModel
from keras_elmo.pretraining.language_model_files import read_language_model, tokenizer_of
from keras_elmo.pretraining.optimizers import Schedule, make_optimizer
from keras_elmo.pretraining.run_folder import FILES, RunFolder, to_numpy
from keras_elmo.pretraining.scores import Scorer
from keras_elmo.recipe import Recipe
from keras_elmo.text_input import read_sentences
from keras_elmo.utils.checks import check_whole, invalid
from keras_elmo.utils.files import PathLike, digest_of, local_path
from keras_elmo.utils.progress import progress_bar

# Held-out tokens that are scored at every checkpoint.
_SAMPLE_TOKENS = 10_000
# A resumed run may change these: they do not decide what a position in the corpus means.
_CHANGEABLE = ("steps", "epochs", "learning_rate", "decay", "decay_shape", "clip_norm")


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
        config: BiLMConfig or None. Sizes of the biLM; None for the sizes of the resumed run, of
            ``init_from``, or else of the "original" model.
        recipe: Recipe or None. How the biLM is trained; None for the recipe of the resumed run,
            or else the defaults.
        save_every: int. Steps between checkpoints. A killed run loses at most these steps.
        resume: bool. Continue the run in the folder, if there is one. The recipe may change
            ``steps`` or ``epochs``, ``learning_rate``, ``decay``, ``decay_shape`` and
            ``clip_norm``. All other settings, the corpus and the backend must be equal.
        init_from: str, path or None. Preset to start from (fine-tuning).
        own_vocabulary: bool. With ``init_from``, predict the tokens of the corpus instead of the
            preset's, which then needs no softmax.

    Raises:
        ValueError: If the folder contains a run and ``resume`` is False, a run with other
            settings or another corpus, or a corpus or preset; if the corpus is not a prepared
            one; if ``save_every`` is less than 1; if ``config`` has other sizes than
            ``init_from``; or if the recipe has ``frozen_bilm`` and there is no ``init_from``.

    Examples:
        >>> from keras_elmo.pretraining import Recipe, prepare
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
        config: BiLMConfig | None = None,
        recipe: Recipe | None = None,
        *,
        save_every: int = 500,
        resume: bool = False,
        init_from: PathLike | None = None,
        own_vocabulary: bool = False,
    ) -> None:
        self.save_every = check_whole("Pretraining", "save_every", save_every)
        self.folder, corpus = RunFolder(folder), local_path(corpus)
        files = sorted(corpus.glob("train-*.txt"))
        if not files:
            expected = "Pretraining expects a folder of keras-elmo prepare"
            raise invalid(expected, f"{corpus}, without train-*.txt")
        is_started = resume and self.folder.settings.is_file()
        taken = [name for name in FILES if (self.folder.path / name).exists()]
        if taken and not is_started:
            raise invalid(
                "Pretraining expects a folder without a run, a corpus or a preset",
                f"{self.folder.path} with {', '.join(taken)}",
                "Resume a run (resume=True, --resume), or choose another folder",
            )
        before = self.folder.read_settings() if is_started else None
        if before is not None:
            config, recipe = config or before[0], recipe or before[1]
            if init_from is None:
                init_from, own_vocabulary = before[2]["init_from"], before[2]["own_vocabulary"]
        self._given = recipe = recipe or Recipe()
        digests = "".join(digest_of(file) for file in (*files, corpus / "vocab.txt"))
        self._origin: dict[str, Any] = {
            "corpus": hashlib.sha256(digests.encode()).hexdigest(),
            "init_from": absolute_preset(init_from),
            "own_vocabulary": own_vocabulary,
            "backend": keras.backend.backend(),
        }
        if before is not None:
            _check_same(before, (config, recipe, self._origin))
        keras.utils.set_random_seed(recipe.seed)
        resumes = is_started and self.folder.checkpoint.is_file()
        if resumes:
            self.model, self.vocabulary, facts = read_run(self.folder.path)
        else:
            start = self._origin["init_from"], own_vocabulary
            self.model, self.vocabulary = _first_model(config, recipe, corpus, *start)
            facts = {"step": 0, "tokens": 0, "seconds": 0.0, "perplexity": None}
            facts |= {"position": (0, 0, 0), "log": []}
        self.facts = facts
        self._tokenizer = None if resumes else tokenizer_of(corpus, self._origin["init_from"])
        self.devices = count_devices()
        sizes = recipe.batch_tokens, self.devices
        batcher = Batcher(self.model.config, self.vocabulary, *sizes)
        self._corpus = Corpus(files, batcher, recipe.max_tokens, recipe.seed)
        self.steps = recipe.steps or self._corpus.steps(recipe.epochs or 0)
        self.recipe = dataclasses.replace(recipe, steps=self.steps, epochs=None)
        self.model.bilm.trainable = not recipe.frozen_bilm
        self.optimizer = make_optimizer(self.recipe, Schedule(self.recipe))
        # On TensorFlow, XLA would compile every batch anew; JAX gets batches of fixed shapes.
        self.model.compile(self.optimizer, jit_compile=keras.backend.backend() == "jax")
        self.optimizer.build(self.model.trainable_variables)
        if resumes:
            self.folder.load({"optimizer": self.optimizer.variables})
        self._scorer = Scorer(self.model, self.vocabulary)
        self._sample = _sample(corpus)

    def run(self, callbacks: Iterable = (), progress: bool = True) -> None:
        """Train to the last step of the recipe.

        A run that is interrupted continues from its last checkpoint in a new ``Pretraining`` with
        ``resume``.

        Args:
            callbacks: iterable of Keras callbacks, for example ``keras.callbacks.TensorBoard``.
                One epoch is the steps between two checkpoints. A callback that sets
                ``stop_training`` ends the run with a checkpoint.
            progress: bool. Whether to show a progress bar.

        Raises:
            OSError: If another process trains in the folder, or a checkpoint cannot be written.
            ValueError: If the run diverged; the last checkpoint stays.
        """
        is_first, step = this_process()[0] == 0, self.facts["step"]
        shown = {"total": self.steps, "initial": step, "unit": " steps", "desc": "pretraining"}
        with (
            self.folder.locked() if is_first else contextlib.nullcontext(),
            progress_bar(progress and is_first, **shown) as bar,
        ):
            if is_first:
                settings = self.model.config, self._given, self._origin
                self.folder.write_settings(*settings, self.vocabulary, self._tokenizer)
            if step < self.steps:
                ahead: collections.deque = collections.deque()
                # TensorBoard counts epochs from the start of the run.
                first = math.ceil(step / self.save_every)
                self.model.fit(
                    self._feed(ahead),
                    shuffle=False,  # the feed shuffles
                    steps_per_epoch=self.save_every,
                    initial_epoch=first,
                    epochs=first + math.ceil((self.steps - step) / self.save_every),
                    verbose=0,
                    callbacks=[_Keeper(self, bar, ahead, is_first), *callbacks],
                )

    def _feed(self, ahead: collections.deque) -> Any:
        """Return the batches after the checkpoint; add tokens and position of each to ``ahead``."""
        is_tensorflow = keras.backend.backend() == "tensorflow"

        def batches() -> Iterator[tuple[dict]]:
            for batch, *counts in self._corpus.batches(self.facts["position"]):
                ahead.append(counts)
                if is_tensorflow and self.devices > 1:
                    yield from ((x,) for x in batches_of_replicas(batch, self.devices))
                else:
                    yield (rows_of_process(batch),)

        if not is_tensorflow:
            return batches()
        import tensorflow as tf

        ids = tf.TensorSpec([None] * 3, tf.int32)
        spec = {"words": ids, "targets": ids, "weights": tf.TensorSpec([None] * 3, tf.float32)}
        spec["characters"] = tf.TensorSpec([None] * 2, tf.int32)
        feed = tf.data.Dataset.from_generator(batches, output_signature=(spec,)).prefetch(4)
        # Each replica takes the next element of the feed.
        return tf.distribute.get_strategy().distribute_datasets_from_function(lambda _: feed)

    def heldout_perplexity(self) -> float | None:
        """Return the joint perplexity of a held-out sample, None without held-out text."""
        return self._scorer.perplexity(self._sample)["perplexity"] if self._sample else None


class _Keeper(keras.callbacks.Callback):
    """Count steps, log, score held-out text and write checkpoints."""

    def __init__(
        self, run: Pretraining, bar: Any, ahead: collections.deque, is_first: bool
    ) -> None:
        super().__init__()
        self.run, self.bar, self.ahead, self.is_first = run, bar, ahead, is_first
        self.began, self.before = time.monotonic(), dict(run.facts)

    def on_train_batch_end(self, batch: int, logs: dict) -> None:
        facts = self.run.facts
        facts["step"] += 1
        tokens, facts["position"] = self.ahead.popleft()
        facts["tokens"] += tokens
        if batch % 10 == 9:  # reading the loss waits for the accelerator
            self._check("loss", logs["loss"])
            rate = (facts["tokens"] - self.before["tokens"]) / (time.monotonic() - self.began)
            text = f"loss {logs['loss']:.3f}, {rate:.0f} tokens/s"
            self.bar.set_postfix_str(text, refresh=False)
        self.bar.update()
        if facts["step"] >= self.run.steps:
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: dict) -> None:
        run, facts = self.run, self.run.facts
        self._check("loss", logs["loss"])
        for variable in run.model.trainable_variables:
            self._check("sum of the weights", float(to_numpy(variable).sum()))
        self.bar.set_description("measuring and saving")
        # The loss is from before the last update, the perplexity from after it.
        facts["perplexity"] = run.heldout_perplexity()
        facts["seconds"] = self.before["seconds"] + time.monotonic() - self.began
        row = {
            "step": facts["step"],
            "tokens": facts["tokens"],
            "seconds": round(facts["seconds"], 1),
            "learning_rate": float(Schedule(run.recipe)(facts["step"] - 1)),
            "loss": float(logs["loss"]),
            "perplexity": facts["perplexity"],
        }
        facts["log"].append(row)
        logs.update({name: value for name, value in row.items() if value is not None})
        if self.is_first:
            variables = {"model": run.model.variables, "optimizer": run.optimizer.variables}
            run.folder.save(variables, facts)
        self.bar.set_description("pretraining")

    def _check(self, name: str, value: float) -> None:
        """Raise a ``ValueError`` if the run diverged."""
        if not math.isfinite(value):
            raise invalid(
                f"Training diverged: expected a finite {name}",
                f"{value} at step {self.run.facts['step']}",
                f"Resume the run in {self.run.folder.path}, or begin anew, with a lower "
                "learning_rate or clip_norm",
            )


def _check_same(before: tuple, after: tuple) -> None:
    """Raise a ``ValueError`` if a setting differs that a resumed run must not change."""
    old, new = (
        {**dataclasses.asdict(config), **dataclasses.asdict(recipe), **origin}
        for config, recipe, origin in (before, after)
    )
    if differing := [n for n in new if new[n] != old.get(n) and n not in _CHANGEABLE]:
        expected = "A resumed run expects the settings that it began with, except"
        raise invalid(
            f"{expected} {', '.join(_CHANGEABLE)}", f"another value of {', '.join(differing)}"
        )


def _first_model(
    config: BiLMConfig | None,
    recipe: Recipe,
    corpus: pathlib.Path,
    preset: PathLike | None,
    own_vocabulary: bool,
) -> tuple[BiLanguageModel, list[str]]:
    """Return the model of a new run, and its vocabulary."""
    settings, vocabulary = _model_settings(recipe), read_vocabulary(corpus / "vocab.txt")
    if preset is None:
        if recipe.frozen_bilm:
            expected = "Pretraining expects a preset to start from (init_from) with frozen_bilm"
            raise invalid(expected, "init_from=None", "A random biLM predicts nothing")
        return BiLanguageModel(config or BiLMConfig(), len(vocabulary), **settings), vocabulary
    wanted = vocabulary if own_vocabulary else None
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
        ``tokens``, ``seconds``, and ``perplexity`` of the held-out sample or None.

    Raises:
        OSError: If the folder contains no checkpoint, or a damaged one.
    """
    run = RunFolder(folder)
    config, recipe, _ = run.read_settings()
    vocabulary = read_vocabulary(run.vocabulary)
    model = BiLanguageModel(config, len(vocabulary), **_model_settings(recipe))
    return model, vocabulary, run.load({"model": model.variables})


def _model_settings(recipe: Recipe) -> dict:
    """Return the arguments of ``BiLanguageModel`` that come from a recipe."""
    return {
        "n_negatives": recipe.negatives,
        "dropout": recipe.dropout,
        "product_dtype": recipe.precision,
        "seed": recipe.seed,
        "name": "lm",
    }


def _sample(corpus: pathlib.Path) -> list[list[str]]:
    """Return held-out sentences spread over all files of a corpus."""
    files = sorted(corpus.glob("heldout-*.txt"))
    sentences = [sentence for file in files for sentence in read_sentences(file)]
    return sentences[:: max(1, sum(map(len, sentences)) // _SAMPLE_TOKENS)]
