"""The linear-chain conditional random field over tags (Lafferty et al., 2001)."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_elmo.layers.backend.eager import is_eager
from keras_elmo.layers.backend.scan import scan, stack_steps
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

    A call returns potentials, the terms of ``s``. From them, ``loss`` computes the negative
    log-likelihood of labels. A negative label is an unknown tag: the likelihood is a sum over all
    tags at that token (Tsuboi et al., 2008). Labels of padding do not count. ``decode`` returns
    the best tags. Use two models that share the layers, one for training and one for tagging::

        crf = keras_elmo.CRF()
        scores = keras.layers.Dense(n_tags)(features)
        model = keras.Model(inputs, crf(scores, mask=mask))
        model.compile("adam", loss=crf.loss)
        tagger = keras.Model(inputs, crf.decode(scores, mask))

    All computations are in float32 under every dtype policy.

    Args:
        **kwargs: Arguments of ``keras.layers.Layer``.

    Call arguments:
        inputs: Scores, float, shape ``(batch, tokens, n_tags)``; ``n_tags`` static.
        mask: Bool, shape ``(batch, tokens)``, True for tokens. None for the mask that Keras
            attached to the scores; without one, the sentences have no padding.
        decode: bool. Return the best tags, as the method ``decode`` does.

    Returns:
        Potentials, float32, shape ``(batch, tokens, n_tags, n_tags)``: the score of each tag of
        a token (last axis) after each tag of the token before. The largest ``x_t`` of each
        token is subtracted. With ``decode``, tags, int32, shape ``(batch, tokens)``.

    Masking: the output has no Keras mask. In padding, the potential is 0 for the tag of the
    token before and -1e30 for other tags, so padding changes no sum. Decoded padding is 0.

    Raises:
        ValueError: If the input is not 3-D, ``n_tags`` is unknown, or a mask has another shape.

    Examples:
        >>> crf = CRF()
        >>> scores = np.array([[[2.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]])
        >>> mask = np.array([[True, True, False]])
        >>> keras.ops.convert_to_numpy(crf.decode(scores, mask)).tolist()
        [[0, 2, 0]]
        >>> log_p = keras.ops.convert_to_numpy(crf.log_likelihood(scores, [[0, 2, -1]], mask))
        >>> round(np.exp(log_p).item(), 4)  # e**2 / (e**2 + 2) * e / (e + 2)
        0.4534

    Reference:
        Lafferty et al., 2001, https://repository.upenn.edu/cis_papers/159. Lample et al.,
        2016, https://arxiv.org/abs/1603.01360, use it for tagging with an LSTM. Tsuboi et al.,
        2008, https://aclanthology.org/C08-1113.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.loss = CRFLoss()

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
        mask = ops.convert_to_tensor(ops.ones_like(scores[..., 0]) if mask is None else mask)
        _check_shape("a mask", mask, scores)
        mask = ops.cast(mask, "bool")
        # Subtract the largest score of each token. This changes no probability, and avoids sums
        # of large numbers.
        scores = ops.where(mask[..., None], scores, 0.0)
        largest = ops.max(scores, axis=-1, keepdims=True, initial=FORBIDDEN)
        scores = scores - ops.stop_gradient(largest)
        count = ops.cumsum(ops.cast(mask, "int32"), axis=1)
        is_last = ops.equal(count, count[:, -1:])[..., None]
        scores = ops.where(is_last, scores + self.end, scores)
        # The first token has no tag before it: all its rows are equal. Padding is set below.
        is_first = ops.equal(count, 1)[..., None, None]
        start, transitions = map(ops.convert_to_tensor, (self.start, self.transitions))
        before = ops.where(is_first, start, transitions)
        padding = _padding(self.start.shape[0])
        potentials = ops.where(mask[..., None, None], scores[:, :, None] + before, padding)
        return ops.where(mask, _best_tags(potentials), 0) if decode else potentials

    def decode(self, scores: Any, mask: Tensor | None = None) -> Tensor:
        """Find the most probable tags with the Viterbi algorithm. Ties are broken arbitrarily.

        Args:
            scores: Float, shape ``(batch, tokens, n_tags)``; a tensor of a model or an array.
            mask: Bool, shape ``(batch, tokens)``, or None, as in a call.

        Returns:
            Tags, int32, shape ``(batch, tokens)``, 0 in the padding.
        """
        return self(scores, mask=mask, decode=True)

    def log_likelihood(self, scores: Any, tags: Any, mask: Tensor | None = None) -> Tensor:
        """Compute the log-probability of the tags of each sentence.

        Args:
            scores: Float, shape ``(batch, tokens, n_tags)``.
            tags: Int, shape ``(batch, tokens)``: the labels that ``loss`` takes.
            mask: Bool, shape ``(batch, tokens)``, or None, as in a call.

        Returns:
            Log-probability, float32, shape ``(batch,)``; 0 for an empty sentence.

        Raises:
            ValueError: If a shape is wrong or, in eager calls, a tag is ``n_tags`` or more.
        """
        return -self.loss.call(ops.convert_to_tensor(tags), self(scores, mask=mask))

    def compute_mask(self, inputs: Tensor, previous_mask: Tensor | None) -> None:
        return None

    def compute_output_spec(self, inputs: Any, mask: Any = None, decode: bool = False) -> Any:
        if decode:
            return keras.KerasTensor(inputs.shape[:2], "int32")
        return keras.KerasTensor((*inputs.shape, inputs.shape[2]), "float32")


@keras.saving.register_keras_serializable(package="keras_elmo")
class CRFLoss(keras.losses.Loss):
    """Compute the negative log-likelihood of the labels of a sentence; see ``CRF``.

    Args:
        reduction: str. The reduction of ``keras.losses.Loss``; a mean is over sentences.
        name: str. Name of the loss.

    Call arguments:
        y_true: Labels, int, shape ``(batch, tokens)``: tags, negative for unknown tags.
        y_pred: Potentials of a ``CRF``, float, shape ``(batch, tokens, n_tags, n_tags)``.
        sample_weight: Float, shape ``(batch,)`` or ``(batch, 1)``, or None.

    Returns:
        The loss, float32.

    Raises:
        ValueError: If a shape is wrong or, in eager calls, a label is ``n_tags`` or more. In
            compiled graphs the loss of that sentence is NaN.
    """

    def __init__(self, reduction: str = "sum_over_batch_size", name: str = "crf_loss") -> None:
        super().__init__(name=name, reduction=reduction, dtype="float32")

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        if len(y_pred.shape) != 4:
            expected = "CRF expects the loss to receive potentials, the output of the CRF"
            raise invalid(expected, f"shape={tuple(y_pred.shape)}")
        _check_shape("tags", y_true, y_pred)
        n_tags = y_pred.shape[-1]
        # The potentials carry no mask. Padding is recognised by its values.
        is_token = ops.any(ops.not_equal(y_pred, _padding(n_tags)), axis=(2, 3))
        y_true = ops.where(is_token, ops.cast(y_true, "int32"), -1)
        is_wrong = ops.any(y_true >= n_tags, axis=1)
        if is_eager(is_wrong) and ops.any(is_wrong):
            raise invalid(
                f"CRF expects tags below n_tags={n_tags}, negative for unknown tags",
                f"tag={int(ops.max(y_true))}",
                "Give the layer before the CRF one feature for each tag",
            )
        y_true = ops.transpose(y_true)[..., None]
        is_allowed = (y_true < 0) | ops.equal(y_true, ops.arange(n_tags, dtype="int32"))
        # One scan sums over all paths and over the allowed paths, with the same rounding errors.
        penalties = ops.where(is_allowed, 0.0, FORBIDDEN)  # (tokens, batch, n_tags)
        penalties = ops.stack([ops.zeros_like(penalties), penalties], axis=1)  # (tokens, 2, ...)
        potentials = ops.transpose(y_pred, (1, 0, 2, 3))  # (tokens, batch, n_tags, n_tags)
        # The rows of the first token are equal, so zeros add log(n_tags) to both sums.
        zeros = ops.zeros((2, ops.shape(y_pred)[0], n_tags, 1), "float32")
        [last], _ = scan(_sum_prefixes, (zeros,), (potentials, penalties), (), ())
        totals = ops.logsumexp(last[..., 0], axis=-1)
        return ops.where(is_wrong, np.nan, totals[0] - totals[1])


def _sum_prefixes(constants: tuple, carry: tuple, inputs: tuple) -> tuple[tuple, tuple]:
    """Sum, in log space, over all paths that end in each tag of a token."""
    [prefixes], (potentials, penalties) = carry, inputs
    sums = ops.logsumexp(prefixes + potentials, axis=-2) + penalties
    return (sums[..., None],), ()


def _best_tags(potentials: Tensor) -> Tensor:
    """Score the best paths from the first token to the last, then follow the best one back."""
    zeros = ops.zeros((ops.shape(potentials)[0], potentials.shape[-1], 1), "float32")
    potentials = ops.transpose(potentials, (1, 0, 2, 3))
    pairs, tags = ("float32", potentials.shape[-1]), ("float32", 1)
    [last], [pair_scores] = scan(_best_prefixes, (zeros,), (potentials,), (), (pairs,))
    # From the last token to the first. Exports to ONNX cannot convert scan(reverse=True).
    pair_scores = ops.flip(stack_steps(pair_scores), 0)
    _, [tag_scores] = scan(_best_path, (last,), (pair_scores,), (), (tags,))
    return ops.transpose(_argmax(ops.flip(stack_steps(tag_scores), 0)))


def _best_prefixes(constants: tuple, carry: tuple, inputs: tuple) -> tuple[tuple, tuple]:
    """Score the best path that ends in each pair of tags, and in each tag of a token."""
    [prefixes], [potentials] = carry, inputs
    scores = prefixes + potentials
    # An eager batch of no sentence needs an initial maximum.
    return (ops.max(scores, axis=1, initial=-np.inf)[..., None],), (scores,)


def _best_path(constants: tuple, carry: tuple, inputs: tuple) -> tuple[tuple, tuple]:
    """Score the tags of the token before, given the best tag of a token."""
    [scores], [pair_scores] = carry, inputs
    tags = ops.arange(pair_scores.shape[-1], dtype="int32")
    is_best = ops.equal(_argmax(scores)[:, None, None], tags)
    before = ops.sum(ops.where(is_best, pair_scores, 0.0), axis=2, keepdims=True)
    return (before,), (scores,)


def _argmax(scores: Tensor) -> Tensor:
    # tf2onnx cannot convert the argmax of Keras, which looks at the bits of zeros.
    return ops.cast(ops.top_k(scores[..., 0], 1)[1][..., 0], "int32")


def _padding(n_tags: int) -> Tensor:
    """Return the potentials of padding, which keeps the tag of the token before."""
    return ops.where(ops.eye(n_tags, dtype="bool"), 0.0, FORBIDDEN)


def _check_shape(name: str, x: Tensor, scores: Tensor) -> None:
    sizes = zip(x.shape, scores.shape)
    if len(x.shape) != 2 or any(a != b and None not in (a, b) for a, b in sizes):
        raise invalid(
            f"CRF expects {name} of shape (batch, tokens)",
            f"shape={tuple(x.shape)}, for scores of shape={tuple(scores.shape[:3])}",
        )
