"""The softmax over a vocabulary, full or sampled (Jean et al., 2015)."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_elmo.layers.backend.half_precision import mixed_matmul
from keras_elmo.utils.typing import Tensor

_LEAST_PARTS = 4
_BYTES_OF_A_PART = 1 << 29  # logits of one part; each part reads the whole kernel
_ROWS = 2048  # assumed when the graph does not know the number of rows


def _parts(n: Any, n_candidates: int) -> list[slice]:
    """Return slices of rows whose logits fit into memory."""
    n_bytes = 4 * n_candidates * (n if isinstance(n, int) else _ROWS)
    count = max(_LEAST_PARTS, -(-n_bytes // _BYTES_OF_A_PART))
    return [slice(part * n // count, (part + 1) * n // count) for part in range(count)]


def sample_log_uniform(
    size: int, vocabulary_size: int, seed: keras.random.SeedGenerator
) -> tuple[Tensor, Tensor]:
    """Draw distinct vocabulary ids; frequent tokens, which come first, are drawn more often.

    Ids are drawn in proportion to ``log((id + 2) / (id + 1))`` without replacement: the ``size``
    ids with the largest ``log p + Gumbel noise``. Given the largest value that was not drawn,
    each id was drawn independently with the returned probability. Sums over the sample, divided
    by this probability, are therefore unbiased.

    Returns ``size`` ids, int32, fewer than ``vocabulary_size``, and the logs of their expected
    counts, float32. ``seed`` gives the noise.

    Reference:
        Kool et al., 2019, https://arxiv.org/abs/1903.06059, section 4.2 (the estimator).
    """
    ids = np.arange(vocabulary_size)
    log_p = np.log(np.log1p(1 / (ids + 1)) / np.log(vocabulary_size + 1))
    log_p = ops.convert_to_tensor(log_p.astype("float32"))
    uniform = keras.random.uniform((vocabulary_size,), 1e-7, 1.0, dtype="float32", seed=seed)
    scores, drawn = ops.top_k(log_p - ops.log(-ops.log(uniform)), size + 1)
    drawn = ops.cast(drawn[:-1], "int32")
    expected = -ops.expm1(-ops.exp(ops.take(log_p, drawn) - scores[-1]))
    return drawn, ops.stop_gradient(ops.log(expected))


def softmax_loss(
    outputs: Tensor,
    targets: Tensor,
    weights: Tensor,
    kernel: Tensor,
    bias: Tensor,
    sample: tuple[Tensor, Tensor] | None = None,
    product_dtype: str = "float32",
) -> Tensor:
    """Return the weighted negative log-likelihood of targets under a softmax.

    With a sample, the softmax covers the target and the other sampled ids. The logs of the
    expected counts are subtracted from the logits of the sampled ids.

    The loss and its gradient are computed together, part by part, so that the logits of one
    part, about 512 MiB, are in memory at a time. The gradients of ``kernel`` and ``bias`` are
    dense, so that the global norm counts every row once.

    Args:
        outputs: tensor. Outputs of the LSTMs, float32, shape ``(n, projection_dim)``.
        targets: tensor. Vocabulary ids, int32, shape ``(n,)``.
        weights: tensor. Weight of each target, float32, shape ``(n,)``.
        kernel: tensor. Float32, shape ``(vocabulary, projection_dim)``.
        bias: tensor. Float32, shape ``(vocabulary,)``.
        sample: pair of tensors or None. Ids and logs of expected counts from
            ``sample_log_uniform``; None for the full softmax.
        product_dtype: str. Dtype of large matrix products, ``"float32"`` or ``"bfloat16"``.

    Returns:
        ``sum(weights * nll)``, nats, float32, a scalar.

    Reference:
        Jean et al., 2015, https://arxiv.org/abs/1412.2007
    """
    kernel, bias = ops.copy(kernel), ops.copy(bias)
    vocabulary_size = int(kernel.shape[0])
    # The column of each id among the candidates; one past the last column if it was not drawn.
    if sample is None:
        n_candidates, place = vocabulary_size, targets
    else:
        drawn, log_expected = sample
        n_candidates = int(drawn.shape[0])
        place = ops.scatter_update(
            ops.full((vocabulary_size,), n_candidates, "int32"),
            drawn[:, None],
            ops.arange(n_candidates, dtype="int32"),
        )
        place = ops.take(place, targets)
    columns = ops.arange(n_candidates, dtype="int32")

    def one_part(
        x: Tensor, rows: slice, candidates: Tensor, offsets: Tensor, kernel: Tensor, bias: Tensor
    ) -> tuple[Tensor, ...]:
        """Return the loss of some rows, and its gradients."""
        x, true_kernel = x[rows], ops.take(kernel, targets[rows], axis=0)
        logits = mixed_matmul(x, ops.transpose(candidates), product_dtype) + offsets
        logits = ops.where(place[rows][:, None] == columns, -1e9, logits)
        true = ops.sum(x * true_kernel, axis=-1) + ops.take(bias, targets[rows])
        largest = ops.maximum(ops.max(logits, axis=-1, initial=-1e9), true)
        exps, true_exp = ops.exp(logits - largest[:, None]), ops.exp(true - largest)
        total = ops.sum(exps, axis=-1) + true_exp
        loss = ops.sum(weights[rows] * (ops.log(total) + largest - true))
        errors = exps * (weights[rows] / total)[:, None]
        true_errors = weights[rows] * (true_exp / total - 1)
        return (
            loss,
            mixed_matmul(ops.transpose(errors), x, product_dtype),
            ops.sum(errors, axis=0),
            mixed_matmul(errors, candidates, product_dtype) + true_errors[:, None] * true_kernel,
            true_errors[:, None] * x,
            true_errors,
        )

    @ops.custom_gradient
    def run(outputs: Tensor, kernel: Tensor, bias: Tensor) -> tuple:
        if sample is None:
            candidates, offsets = kernel, bias
        else:
            candidates = ops.take(kernel, drawn, axis=0)
            offsets = ops.take(bias, drawn) - log_expected
        # Sum part by part: with the full softmax, each term is as large as the vocabulary.
        sums: list[Any] = [0.0, 0.0, 0.0]
        of_rows = []
        for rows in _parts(ops.shape(outputs)[0], n_candidates):
            part = one_part(outputs, rows, candidates, offsets, kernel, bias)
            sums = [total + term for total, term in zip(sums, part)]
            of_rows.append(part[3:])
        loss, d_candidates, d_offsets = sums
        d_outputs, d_true_kernel, d_true_bias = map(ops.concatenate, zip(*of_rows))

        def of_vocabulary(of_candidates: Tensor, of_targets: Tensor) -> Tensor:
            if sample is None:
                return of_candidates + ops.segment_sum(of_targets, targets, vocabulary_size)
            rows = ops.concatenate([of_candidates, of_targets])
            return ops.segment_sum(rows, ops.concatenate([drawn, targets]), vocabulary_size)

        def gradient(*args: Tensor, upstream: Tensor = None) -> tuple:
            if upstream is None:
                (upstream,) = args
            return (
                upstream * d_outputs,
                upstream * of_vocabulary(d_candidates, d_true_kernel),
                upstream * of_vocabulary(d_offsets, d_true_bias),
            )

        return loss, gradient

    return run(outputs, kernel, bias)


def negative_log_likelihood(
    outputs: Tensor, targets: Tensor, kernel: Tensor, bias: Tensor
) -> Tensor:
    """Return the negative log-likelihood of every target under the full softmax.

    ``softmax_loss`` describes the arguments. Returns nats, float32, shape ``(n,)``.
    """
    kernel, bias = ops.convert_to_tensor(kernel), ops.convert_to_tensor(bias)
    true = ops.sum(outputs * ops.take(kernel, targets, axis=0), axis=-1) + ops.take(bias, targets)
    totals = [
        ops.logsumexp(ops.matmul(outputs[rows], ops.transpose(kernel)) + bias, axis=-1)
        for rows in _parts(ops.shape(outputs)[0], int(kernel.shape[0]))
    ]
    return ops.concatenate(totals) - true
