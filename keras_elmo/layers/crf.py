"""The linear-chain conditional random field over tags (Lafferty et al., 2001)."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_elmo.layers.backend.eager import is_eager
from keras_elmo.layers.backend.scan import scan
from keras_elmo.utils.checks import invalid
from keras_elmo.utils.typing import Tensor

# The score of an impossible tag. In float32 its share of every sum is exactly 0, and sums of
# thousands of such scores do not overflow.
FORBIDDEN = -1e30


@keras.saving.register_keras_serializable(package="keras_elmo")
class CRF(keras.layers.Layer):
    """Score whole tag sequences: a linear-chain conditional random field.

    For the scores ``x`` of each tag at each token, as from ``Dense(n_tags)``, the tags
    ``y_1 .. y_n`` of a sentence have the probability ``exp(s(x, y)) / Z(x)``::

        s(x, y) = start[y_1] + sum_t x_t[y_t] + sum_t transitions[y_t, y_t+1] + end[y_n]
        Z(x) = sum of exp(s(x, y)) over all tag sequences y

    All weights start at zero, so an untrained CRF is a softmax at every token.

    A call returns the scores in float32: it only makes the weights of the CRF part of the model.
    ``loss`` trains them, and ``decode`` returns the best tags. Use two models that share the
    layers, one for training and one for tagging::

        crf = keras_elmo.CRF()
        scores = keras.layers.Dense(n_tags)(features)
        model = keras.Model(inputs, crf(scores))
        model.compile("adam", loss=crf.loss)      # labels: -1 in the padding
        tagger = keras.Model(inputs, crf.decode(scores))
        tagger.save("tagger.keras")               # words to tags, once loaded

    A saved functional or sequential ``model`` loads compiled, with the loss of the loaded CRF.
    A cloned model and a loaded subclassed model must be compiled again, with the loss of the
    new CRF: ``model.get_layer("crf").loss``.

    Scores, weights and results are float32 under every dtype policy.

    Args:
        **kwargs: Arguments of ``keras.layers.Layer``.

    Call arguments:
        inputs: Scores, float, shape ``(batch, tokens, n_tags)``; ``n_tags`` static.
        mask: Bool, shape ``(batch, tokens)``, True for tokens; or None.
        decode: bool. Return the best tags, as the method ``decode`` does.

    Returns:
        The scores, float32, shape ``(batch, tokens, n_tags)``. With ``decode``, the most
        probable tags, int32, shape ``(batch, tokens)``.

    Masking: returns the incoming mask. Padding belongs to no sequence and gets tag 0.

    Raises:
        ValueError: In ``build``, if the input is not 3-D or ``n_tags`` is unknown.

    Examples:
        >>> crf = CRF()
        >>> scores = np.array([[[2.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]])
        >>> mask = np.array([[True, True, False]])
        >>> keras.ops.convert_to_numpy(crf.decode(scores, mask)).tolist()
        [[0, 2, 0]]
        >>> log_p = keras.ops.convert_to_numpy(crf.log_likelihood(scores, [[0, 2, -1]]))
        >>> round(np.exp(log_p).item(), 4)  # e**2 / (e**2 + 2) * e / (e + 2)
        0.4534

    Reference:
        Lafferty et al., 2001, https://repository.upenn.edu/cis_papers/159. Lample et al.,
        2016, https://arxiv.org/abs/1603.01360, use it for tagging with an LSTM.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        self.serializing = False
        self.loss = CRFLoss(self)

    def build(self, input_shape: tuple) -> None:
        if len(input_shape) != 3 or input_shape[2] is None:
            raise invalid(
                "CRF expects scores of shape (batch, tokens, n_tags), n_tags known",
                f"shape={tuple(input_shape)}",
            )
        n_tags = input_shape[2]
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={2: n_tags})
        shapes = {"transitions": (n_tags, n_tags), "start": (n_tags,), "end": (n_tags,)}
        self.transitions, self.start, self.end = (
            self.add_weight(
                shape=shape, initializer="zeros", dtype="float32", autocast=False, name=name
            )
            for name, shape in shapes.items()
        )

    def call(self, inputs: Tensor, mask: Tensor | None = None, decode: bool = False) -> Tensor:
        scores = ops.cast(inputs, "float32")
        if not decode:
            return scores
        mask = ops.ones_like(scores[..., 0], "bool") if mask is None else _as_mask(mask, scores)
        scores, is_token = _time_first(_centred(scores, mask), mask)
        _, [best] = self._scan(_best_prefixes, self.start, (scores, is_token))
        # From the last token to the first. Exports to ONNX cannot convert scan(reverse=True).
        backwards = (ops.flip(best, 0), ops.flip(is_token, 0))
        _, [path] = self._scan(_best_path, self.end, backwards)
        tags = ops.transpose(ops.cast(_argmax(ops.flip(path, 0)), "int32"))
        return ops.where(mask, tags, ops.zeros_like(tags))

    def decode(self, scores: Any, mask: Tensor | None = None) -> Tensor:
        """Find the most probable tags with the Viterbi algorithm.

        If several sequences are equally probable, it returns any of them.

        Args:
            scores: Float, shape ``(batch, tokens, n_tags)``; a tensor of a model or an array.
            mask: Bool, shape ``(batch, tokens)``. None for the mask that Keras attached to the
                scores, if any. The result of ``predict`` has no mask attached.

        Returns:
            Tags, int32, shape ``(batch, tokens)``, 0 in the padding.
        """
        return self(_as_array(scores), mask=mask, decode=True)

    def log_likelihood(self, scores: Any, tags: Any, mask: Tensor | None = None) -> Tensor:
        """Compute the log-probability of the tags of each sentence.

        The result is ``s(x, y) - log Z(x)``. ``s`` is computed as the ``log Z`` of a chain in
        which all other tags are impossible, so both terms have the same rounding errors.

        Args:
            scores: Float, shape ``(batch, tokens, n_tags)``.
            tags: Int, shape ``(batch, tokens)``. Negative tags are padding.
            mask: Bool, shape ``(batch, tokens)``, or None. False marks more padding.

        Returns:
            Log-probability, float32, shape ``(batch,)``; 0 for an empty sentence.

        Raises:
            ValueError: If the layer is not built, a shape does not fit, or a tag is no whole
                number below ``n_tags``. In compiled graphs the log-probability of a sentence
                with too large a tag is NaN; without XLA, TensorFlow raises its
                ``InvalidArgumentError`` there.
        """
        if not self.built:
            raise ValueError(
                "CRF has no log_likelihood before it is built. Call it, or the model, first. "
                "Compile a model that was made from a config with the loss of the CRF in that model"
            )
        scores = self(_as_array(scores))  # checks the shape, and casts
        tags = ops.convert_to_tensor(_per_token("tags", tags, scores))
        real = ops.greater_equal(tags, 0)
        if mask is not None:
            mask = _as_mask(mask, scores)
            real, tags = real & mask, ops.where(mask, tags, 0)
        n_tags = self.start.shape[0]
        _check_tags(tags, n_tags)
        tags = ops.cast(tags, "int32")
        scores = _centred(scores, real)
        is_tag = ops.equal(tags[..., None], ops.arange(n_tags, dtype="int32"))
        only_tags = ops.where(is_tag, scores, FORBIDDEN)
        # One scan over a batch of twice the size is faster than two scans.
        both = ops.concatenate([only_tags, scores], axis=0)
        inputs = _time_first(both, ops.concatenate([real, real], axis=0))
        (last, _), _ = self._scan(_sum_of_prefixes, self.start, inputs)
        score, log_z = ops.split(ops.logsumexp(last + self.end, axis=-1), 2)
        log_p = ops.where(ops.any(real, axis=1), score - log_z, 0.0)
        return ops.where(ops.all(tags < n_tags, axis=1), log_p, np.nan)

    def _scan(self, step: Callable, first: Tensor, inputs: tuple) -> tuple[tuple, tuple]:
        """Run a step over the tokens.

        The carry contains the output of the last token, and the addition to the scores of the
        next token. The first addition is ``first``.
        """
        zeros = ops.zeros(ops.shape(inputs[0])[1:], "float32")
        transitions = ops.convert_to_tensor(self.transitions)
        return scan(step, (zeros, zeros + first), inputs, (transitions,), inputs[:1])

    def get_config(self) -> dict:
        # The config of the loss must refer to this layer by an id. Keras gives an id only to an
        # object that it serializes twice, so serialize the layer once more here.
        if not self.serializing:
            self.serializing = True
            try:
                keras.saving.serialize_keras_object(self)
            finally:
                self.serializing = False
        return super().get_config()

    def compute_output_spec(
        self, inputs: Tensor, mask: Tensor | None = None, decode: bool = False
    ) -> keras.KerasTensor:
        if decode:
            return keras.KerasTensor(inputs.shape[:2], "int32")
        return keras.KerasTensor(inputs.shape, "float32")


@keras.saving.register_keras_serializable(package="keras_elmo")
class CRFLoss(keras.losses.Loss):
    """Compute the negative log-likelihood of the tags of a sentence under a CRF.

    Args:
        crf: ``CRF``. The last layer of the model. A loss that was saved with a model uses the
            CRF of the loaded model.
        reduction: str. The reduction of ``keras.losses.Loss``; a mean is over sentences.
        name: str. Name of the loss.

    Call arguments:
        y_true: Tags, int, shape ``(batch, tokens)``; negative in the padding.
        y_pred: Scores, float, shape ``(batch, tokens, n_tags)``. Tokens that the Keras mask
            excludes do not count, whatever their tags are.
        sample_weight: Float, shape ``(batch,)`` or ``(batch, 1)``, or None.

    Returns:
        The loss, float32.

    Raises:
        ValueError: If ``y_true`` or ``sample_weight`` has another shape, or if a tag is too large
            (see ``CRF.log_likelihood``).
    """

    def __init__(
        self, crf: CRF, reduction: str = "sum_over_batch_size", name: str = "crf_loss"
    ) -> None:
        super().__init__(name=name, reduction=reduction, dtype="float32")
        # Store the method. If a loss stores a layer, Keras looks for weights in the loss too.
        self.log_likelihood: Any = crf.log_likelihood

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Tensor:
        y_pred, sample_weight = _as_array(y_pred), _as_array(sample_weight)
        y_true = _per_token("tags", y_true, y_pred)
        if sample_weight is not None and tuple(sample_weight.shape[1:]) not in ((), (1,)):
            raise invalid(
                "CRFLoss expects one sample_weight per sentence, shape (batch,)",
                f"shape={tuple(sample_weight.shape)}",
                "It knows no class_weight: a CRF scores all tags of a sentence together",
            )
        # TensorFlow refuses the name that Keras would make of the name of the class.
        keras_mask = _KerasMask(name="keras_mask", reduction=None, dtype="float32")
        mask = ops.cast(keras_mask(y_pred, y_pred), "bool")
        # log_likelihood checks the remaining tags. An unsigned dtype could not represent the -1.
        y_true = ops.where(mask, ops.cast(y_true, "float32"), -1)
        # A new tensor without the Keras mask of the tokens, which would not fit the losses of
        # the sentences.
        y_pred = ops.where(mask[..., None], y_pred, 0)
        return super().__call__(y_true, y_pred, sample_weight)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return -self.log_likelihood(y_pred, y_true)

    def get_config(self) -> dict:
        # Keras finds the CRF of a model in the same file by its id. Without a build_config, a
        # CRF that is not in a model stays unbuilt, and log_likelihood raises an error.
        crf = keras.saving.serialize_keras_object(self.log_likelihood.__self__)
        crf.pop("build_config", None)
        return {**super().get_config(), "crf": crf}

    @classmethod
    def from_config(cls, config: dict) -> "CRFLoss":
        crf = keras.saving.deserialize_keras_object(config["crf"])
        return cls(**{**config, "crf": crf})


class _KerasMask(keras.losses.Loss):
    """Return the Keras mask of the scores.

    The loss is 1 at every token, and Keras sets it to 0 where the mask is False. There is no
    other public way to read the mask: on JAX no attribute contains it.
    """

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return ops.ones_like(y_pred[..., 0])


def _prefixes(
    combine: Callable, constants: tuple, carry: tuple, inputs: tuple
) -> tuple[tuple, tuple]:
    """Combine the scores of all prefixes that end in each tag."""
    [transitions], (_, addition), (scores, is_token) = constants, carry, inputs
    output = scores + addition
    addition = combine(output[:, :, None] + transitions, axis=1)
    return _unless_padding(is_token, output, addition, carry), (output,)


_sum_of_prefixes = functools.partial(_prefixes, ops.logsumexp)
# An eager batch of no sentence needs an initial maximum.
_best_prefixes = functools.partial(_prefixes, functools.partial(ops.max, initial=-np.inf))


def _best_path(constants: tuple, carry: tuple, inputs: tuple) -> tuple[tuple, tuple]:
    """Score each tag by its best prefix, given the best tag of the next token."""
    [transitions], (_, addition), (best, is_token) = constants, carry, inputs
    output = best + addition
    addition = ops.take(ops.transpose(transitions), _argmax(output), axis=0)
    return _unless_padding(is_token, output, addition, carry), (output,)


def _unless_padding(is_token: Tensor, output: Tensor, addition: Tensor, carry: tuple) -> tuple:
    return tuple(ops.where(is_token, x, y) for x, y in zip((output, addition), carry))


def _argmax(x: Tensor) -> Tensor:
    # tf2onnx cannot convert the argmax of Keras, which looks at the bits of zeros.
    return ops.top_k(x, 1)[1][..., 0]


def _time_first(scores: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return ops.transpose(scores, (1, 0, 2)), ops.transpose(mask)[..., None]


def _centred(scores: Tensor, mask: Tensor) -> Tensor:
    """Subtract the largest score of each token, and set padding to 0.

    This changes no probability, and avoids sums of large numbers.
    """
    scores = ops.where(mask[..., None], scores, 0.0)
    largest = ops.max(scores, axis=-1, keepdims=True, initial=FORBIDDEN)
    return scores - ops.stop_gradient(largest)


def _as_array(x: Any) -> Any:
    """Return a list as an array. Keras would treat a list as several outputs of a model."""
    return np.asarray(x) if isinstance(x, list | tuple) else x


def _per_token(name: str, x: Any, scores: Any) -> Any:
    """Return tags or a mask, lists as an array. Raise a ``ValueError`` for another shape."""
    x = _as_array(x)
    sizes = zip(x.shape, scores.shape)
    if len(x.shape) != 2 or any(a != b and None not in (a, b) for a, b in sizes):
        raise invalid(
            f"CRF expects {name} of shape (batch, tokens)",
            f"shape={tuple(x.shape)}, for scores of shape={tuple(scores.shape)}",
        )
    return x


def _as_mask(mask: Any, scores: Tensor) -> Tensor:
    return ops.cast(ops.convert_to_tensor(_per_token("a mask", mask, scores)), "bool")


def _check_tags(tags: Tensor, n_tags: int) -> None:
    """Raise an error for wrong tags, in eager calls and partly in graphs of TensorFlow."""
    expected = f"CRF expects whole numbers as tags, below n_tags={n_tags}, negative in the padding"
    if is_eager(tags):
        values = ops.convert_to_numpy(tags)
        wrong = values[(values >= n_tags) | (values != np.floor(values))]
        if wrong.size:
            advice = "Give the layer before the CRF one feature for each tag"
            raise invalid(expected, f"tag={wrong[0]}", advice)
    elif keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.debugging.assert_less(tf.cast(tags, "int32"), n_tags, expected)
