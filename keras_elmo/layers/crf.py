"""The linear-chain conditional random field over tags (Lafferty et al., 2001)."""

import keras
import numpy as np
from keras import ops

from keras_elmo.layers.backend.scan import scan

# The score of a tag that is ruled out: its share of every sum is exactly 0 in float32,
# and adding up thousands of them does not overflow.
FORBIDDEN = -1e30


@keras.saving.register_keras_serializable(package="keras_elmo")
class CRF(keras.layers.Layer):
    """Score whole tag sequences: a linear-chain conditional random field.

    With the score of each tag at each token, ``x``, as a ``Dense(n_tags)`` gives it,
    the tags ``y_1 .. y_n`` of a sentence have the probability ``exp(s(x, y)) / Z(x)``::

        s(x, y) = start[y_1] + sum_t x_t[y_t] + sum_t transitions[y_t, y_t+1] + end[y_n]
        Z(x) = sum of exp(s(x, y)) over all tag sequences y

    All weights start at zero, so an untrained CRF is a softmax at every token.

    The layer hands the scores on, so that the model it stands in trains its weights;
    ``loss`` is what to train with, ``decode`` gives the best tags. Two models share the
    layers, one to train and one to use::

        crf = keras_elmo.CRF()
        scores = keras.layers.Dense(n_tags)(features)
        model = keras.Model(inputs, crf(scores))
        model.compile("adam", loss=crf.loss)      # labels: -1 in the padding
        tagger = keras.Model(inputs, crf.decode(scores))
        tagger.save("tagger.keras")               # words to tags, once loaded

    A saved functional or sequential ``model`` loads compiled, its loss bound to its own
    CRF. To compile a loaded or cloned model anew, as a subclassed one must be, take the
    loss from *its* CRF: ``model.get_layer("crf").loss``.

    Scores, weights and results are float32 whatever the dtype policy says.

    Args:
        **kwargs: Passed on to ``keras.layers.Layer``.

    Call arguments:
        inputs: Scores, float, shape ``(batch, tokens, n_tags)``; ``n_tags`` static.
        mask: Bool, shape ``(batch, tokens)``, True for tokens; or None.
        decode: Give the best tags, as ``decode`` does.

    Returns:
        The scores as they came, float32, shape ``(batch, tokens, n_tags)``. With
        ``decode``, the most probable tags, int32, shape ``(batch, tokens)``.

    Masking: hands the incoming mask on. Padded tokens are left out of every sequence,
    whatever they hold, and get tag 0.

    Raises:
        ValueError: In ``build``, if the input is not 3-D or ``n_tags`` is unknown.

    Example:

    >>> crf = CRF()
    >>> scores = np.array([[[2.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]])
    >>> mask = np.array([[True, True, False]])
    >>> keras.ops.convert_to_numpy(crf.decode(scores, mask)).tolist()
    [[0, 2, 0]]
    >>> log_p = keras.ops.convert_to_numpy(crf.log_likelihood(scores, [[0, 2, -1]]))
    >>> round(np.exp(log_p).item(), 4)  # e**2 / (e**2 + 2) * e / (e + 2)
    0.4534

    Reference:
        Lafferty et al., 2001, https://repository.upenn.edu/cis_papers/159;
        for tagging with an LSTM: Lample et al., 2016, https://arxiv.org/abs/1603.01360
    """

    def __init__(self, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True
        self.serializing = False
        self.loss = CRFLoss(self)

    def build(self, input_shape):
        if len(input_shape) != 3 or input_shape[2] is None:
            raise ValueError(
                "CRF expects scores of shape (batch, tokens, n_tags), n_tags known. "
                f"Received: shape={tuple(input_shape)}"
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

    def call(self, inputs, mask=None, decode=False):
        scores = ops.cast(inputs, "float32")
        if not decode:
            return scores
        if 0 in scores.shape[:2]:  # nothing to scan over
            return ops.zeros(scores.shape[:2], "int32")
        scores, mask = _clear_padding(scores, mask)
        scores, is_token = _time_first(scores, mask)
        _, best = self._scan(_best_prefixes, self.start, (scores, is_token))
        _, path = self._scan(_best_path, self.end, (*best, is_token), reverse=True)
        tags = ops.transpose(ops.cast(ops.argmax(path[0], axis=-1), "int32"))
        return ops.where(mask, tags, ops.zeros_like(tags))

    def decode(self, scores, mask=None):
        """Find the most probable tags, by the Viterbi algorithm.

        Of equally probable ones any may come.

        Args:
            scores: Float, shape ``(batch, tokens, n_tags)``; of a model, or an array.
            mask: Bool, shape ``(batch, tokens)``; None for the one that Keras carries
                with the scores, if any. What ``predict`` returns carries none.

        Returns:
            Tags, int32, shape ``(batch, tokens)``, 0 in the padding.
        """
        return self(_as_array(scores, "scores"), mask=mask, decode=True)

    def log_likelihood(self, scores, tags, mask=None):
        """Compute the log-probability of the tags of each sentence.

        The score of the tags is the ``log Z`` of a chain in which all other tags are
        ruled out, so both parts of the result come from the same additions.

        Args:
            scores: Float, shape ``(batch, tokens, n_tags)``.
            tags: Int, shape ``(batch, tokens)``. Negative ones count as padding.
            mask: Bool, shape ``(batch, tokens)``, or None: more tokens to leave out.

        Returns:
            Log-probability, float32, shape ``(batch,)``; 0 for an empty sentence.

        Raises:
            ValueError: If the layer is not built, or a shape does not fit, or, in NumPy
                arrays and lists, a tag is ``n_tags`` or more. In tensors such a tag has
                a log-probability of about ``FORBIDDEN``.
        """
        if not self.built:
            raise ValueError(
                "CRF has no log_likelihood before it is built. Call it, or the model, first; "
                "compile a model rebuilt from its config anew, with the loss of its own CRF"
            )
        n_tags = self.start.shape[0]
        scores, tags = _as_array(scores, "scores"), _as_array(tags, "tags")
        if isinstance(tags, np.ndarray) and np.max(tags, initial=-1) >= n_tags:
            raise ValueError(
                f"CRF expects tags below n_tags={n_tags}. Received: max(tags)={np.max(tags)}"
            )
        scores = ops.convert_to_tensor(scores, "float32")
        tags = ops.cast(ops.convert_to_tensor(tags), "int32")
        if len(scores.shape) != 3 or scores.shape[2] != n_tags or len(tags.shape) != 2:
            raise ValueError(
                f"CRF expects scores of shape (batch, tokens, {n_tags}) and tags of shape "
                f"(batch, tokens). Received: scores.shape={tuple(scores.shape)}, "
                f"tags.shape={tuple(tags.shape)}"
            )
        if 0 in scores.shape[:2]:  # nothing to scan over
            return ops.sum(scores, axis=(1, 2))
        real = tags >= 0
        if mask is not None:
            real = ops.logical_and(real, ops.cast(mask, "bool"))
        scores, real = _clear_padding(scores, real)
        # The same for all sequences, so it falls out of the result, and large scores with it.
        scores = scores - ops.stop_gradient(ops.max(scores, axis=-1, keepdims=True))
        is_tag = ops.equal(tags[..., None], ops.arange(n_tags, dtype="int32"))
        only_tags = ops.where(is_tag, scores, FORBIDDEN)
        # One recursion for both, as a step costs more than a wider batch.
        log_z = self._log_z(
            ops.concatenate([only_tags, scores], axis=0), ops.concatenate([real, real], axis=0)
        )
        score, log_z = ops.split(log_z, 2)
        return score - log_z

    def _log_z(self, scores, mask):
        (last, _), _ = self._scan(_sum_of_prefixes, self.start, _time_first(scores, mask))
        log_z = ops.logsumexp(last + self.end, axis=-1)
        return ops.where(ops.any(mask, axis=1), log_z, ops.zeros_like(log_z))

    def _scan(self, step, first, inputs, reverse=False):
        """Run a step that carries its last output, and what the next one adds to its input."""
        zeros = ops.zeros_like(inputs[0][0])
        transitions = ops.convert_to_tensor(self.transitions)
        shapes = [(None, self.start.shape[0])]
        return scan(step, (zeros, zeros + first), inputs, (transitions,), shapes, reverse)

    def get_config(self):
        # Keras gives an id, for the loss to refer to, to what it serializes a second time;
        # in the config of a functional model the first must have come before.
        if not self.serializing:
            self.serializing = True
            try:
                keras.saving.serialize_keras_object(self)
            finally:
                self.serializing = False
        return super().get_config()

    def compute_output_spec(self, inputs, mask=None, decode=False):
        if decode:
            return keras.KerasTensor(inputs.shape[:2], "int32")
        return keras.KerasTensor(inputs.shape, "float32")


@keras.saving.register_keras_serializable(package="keras_elmo")
class CRFLoss(keras.losses.Loss):
    """The negative log-likelihood of a sentence's tags under a CRF.

    Args:
        crf: The ``CRF`` that the model ends in. Saved with a model, the loss finds the
            CRF of the model again.
        reduction, name: As for every Keras loss; the mean is one over sentences.

    Call arguments:
        y_true: Tags, int, shape ``(batch, tokens)``; negative in the padding.
        y_pred: Scores, float, shape ``(batch, tokens, n_tags)``. Tokens that are masked
            by Keras are left out, whatever their tags.
        sample_weight: Float, shape ``(batch,)`` or ``(batch, 1)``, or None.

    Returns:
        The loss, float32.

    Raises:
        ValueError: If ``y_true`` or ``sample_weight`` has another shape.

    Example:

    >>> crf = CRF()
    >>> crf.build((None, None, 2))
    >>> loss = CRFLoss(crf)(np.array([[0, 1, -1]]), np.zeros((1, 3, 2)))
    >>> np.exp(keras.ops.convert_to_numpy(loss)).round(4).item()  # 1 sequence in 2 * 2
    4.0
    """

    def __init__(self, crf, reduction="sum_over_batch_size", name="crf_loss"):
        super().__init__(name=name, reduction=reduction, dtype="float32")
        # Not the layer itself: saving a model would look for weights in it by way of the loss.
        self.log_likelihood = crf.log_likelihood

    def __call__(self, y_true, y_pred, sample_weight=None):
        y_true, y_pred = _as_array(y_true, "tags"), _as_array(y_pred, "scores")
        sample_weight = _as_array(sample_weight, "sample_weight")
        if len(y_true.shape) != 2:
            raise ValueError(
                "CRFLoss expects tags of shape (batch, tokens), as integers. "
                f"Received: shape={tuple(y_true.shape)}"
            )
        if sample_weight is not None and tuple(sample_weight.shape[1:]) not in ((), (1,)):
            raise ValueError(
                "CRFLoss expects one sample_weight a sentence, shape (batch,). "
                f"Received: shape={tuple(sample_weight.shape)}"
            )
        mask = ops.cast(_KerasMask(reduction=None, dtype="float32")(y_pred, y_pred), "bool")
        y_true = ops.where(mask, ops.cast(y_true, "int32"), -1)
        # New scores, to which Keras has not attached the mask: it is one of tokens, and would
        # not fit the losses of sentences.
        y_pred = ops.where(mask[..., None], y_pred, 0)
        return super().__call__(y_true, y_pred, sample_weight)

    def call(self, y_true, y_pred):
        return -self.log_likelihood(y_pred, y_true)

    def get_config(self):
        # By its id the CRF is recognised as the layer of a model in the same file. Without a
        # build_config a CRF that is not recognised cannot pass for the layer.
        crf = keras.saving.serialize_keras_object(self.log_likelihood.__self__)
        crf.pop("build_config", None)
        return {**super().get_config(), "crf": crf}

    @classmethod
    def from_config(cls, config):
        crf = keras.saving.deserialize_keras_object(config["crf"])
        return cls(**{**config, "crf": crf})


class _KerasMask(keras.losses.Loss):
    """The mask that Keras carries with the scores: a loss of 1, that it masks, at every token.

    There is no other public way to it: JAX keeps it in no attribute.
    """

    def call(self, y_true, y_pred):
        return ops.ones_like(y_pred[..., 0])


def _sum_of_prefixes(constants, carry, slices):
    """Add up the scores of all prefixes that end in each tag."""
    return _prefixes(ops.logsumexp, constants, carry, slices)


def _best_prefixes(constants, carry, slices):
    """Find the score of the best prefix that ends in each tag."""
    return _prefixes(ops.max, constants, carry, slices)


def _prefixes(combine, constants, carry, slices):
    scores, is_token = slices
    output = scores + carry[1]
    following = combine(output[:, :, None] + constants[0], axis=1)
    return _unless_padding(is_token, output, following, carry), (output,)


def _best_path(constants, carry, slices):
    """Backward over the best prefixes: rank the tags given the best tag that follows."""
    best, is_token = slices
    output = best + carry[1]
    before = ops.take(ops.transpose(constants[0]), ops.argmax(output, axis=-1), axis=0)
    return _unless_padding(is_token, output, before, carry), (output,)


def _unless_padding(is_token, output, addition, carry):
    return tuple(ops.where(is_token, x, y) for x, y in zip((output, addition), carry))


def _time_first(scores, mask):
    return ops.transpose(scores, (1, 0, 2)), ops.transpose(mask)[..., None]


def _as_array(x, name):
    """Return lists as an array: Keras would take them for the outputs of a model with many."""
    if not isinstance(x, list | tuple):
        return x
    try:
        x = np.asarray(x)
    except ValueError as error:
        raise ValueError(
            f"CRF expects {name} in an array. Received: lists of unequal lengths. Pad them to "
            "one length, the tags with -1"
        ) from error
    if x.dtype.kind not in "biuf":
        raise ValueError(f"CRF expects numbers as {name}. Received: dtype={x.dtype}")
    return x


def _clear_padding(scores, mask):
    """Return the scores with 0 in the padding, and the mask as a bool tensor."""
    if mask is None:
        mask = ops.ones_like(scores[..., 0])
    mask = ops.cast(mask, "bool")
    return ops.where(mask[..., None], scores, 0.0), mask
