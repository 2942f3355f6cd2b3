"""Pretrain a biLM on one GPU with JAX, for a fixed time.

    keras-elmo prepare texts.txt corpus
    python examples/pretrain_on_gpu.py corpus my_bilm --init-from elmo_small_en --minutes 8

``keras-elmo pretrain`` is made for CPUs. This script reads the same corpus and writes the same
preset, but in ways that are fast on a GPU:

- All batches have one shape. Sentences are packed into rows, and the state is reset where a
  sentence starts.
- Both directions are computed in one product. The products are in bfloat16.
- The softmax is full.
- The learning rate rises, then falls linearly to 0 at the end of the time.

Muon trains the matrices of the biLM, Adam the other weights. There is no dropout.
"""

import argparse
import collections
import concurrent.futures
import functools
import itertools
import multiprocessing
import os
import pathlib
import time

import numpy as np

ROW = 96  # steps of a row; a longer sentence is cut
BOS, EOS, UNKNOWN = 0, 1, 2  # the first tokens of a vocabulary
CONTINUES, STARTS, PADDING = 0, 1, 2  # kinds of steps in a row
DIRECTIONS = ("forward", "backward")
SOFTMAX = ("softmax_kernel", "softmax_bias")
SOFTMAX_PARTS = 8
UNROLL = 4


# The corpus.


def read_corpus(folder, vocabulary):
    """Return all tokens, the vocabulary first, and the ids and lengths of each text by name."""
    files = {"train": sorted(folder.glob("train-*.txt"))}
    files |= {file.stem: [file] for file in sorted(folder.glob("heldout-*.txt"))}
    index = {token: i for i, token in enumerate(vocabulary)}
    texts = {}
    for name, parts in files.items():
        ids, lengths = [], []
        for file in parts:
            for line in file.read_text("utf-8").rstrip("\n").split("\n"):
                found = [index.setdefault(token, len(index)) for token in line.split(" ")]
                ids.append(np.array(found, "int32"))
                lengths.append(len(found))
        texts[name] = np.concatenate(ids), np.array(lengths)
    return list(index), texts


def cut_long(lengths):
    """Return the starts and lengths of pieces that fit into a row with a boundary token."""
    starts, most = np.cumsum(lengths) - lengths, ROW - 1
    n_pieces = -(-lengths // most)
    piece = np.arange(n_pieces.sum()) - np.repeat(np.cumsum(n_pieces) - n_pieces, n_pieces)
    begin = np.repeat(starts, n_pieces) + most * piece
    return begin, np.minimum(begin + most, np.repeat(starts + lengths, n_pieces)) - begin


def pack(lengths):
    """Pack lengths into rows, the longest first. Return pairs: a number of rows, their lengths."""
    counts = np.bincount(lengths, minlength=ROW + 1)
    by_space = collections.defaultdict(list)
    for length in range(ROW, 0, -1):
        n = int(counts[length])
        while n:
            space = next((s for s in range(length, ROW) if by_space[s]), ROW)
            rows, content = (n, []) if space == ROW else by_space[space].pop()
            fit = min(space // length, max(1, n // rows))
            used = min(rows, n // fit)
            if used < rows and space != ROW:
                by_space[space].append((rows - used, content))
            by_space[space - fit * length].append((used, content + [length] * fit))
            n -= used * fit
    return [pair for pairs in by_space.values() for pair in pairs]


def make_rows(ids, lengths, seed):
    """Return the rows of one epoch in a new order.

    int32, shape ``(3, rows, ROW)``: the inputs of both directions, and the kind of each step.
    """
    rng = np.random.default_rng(seed)
    begin, lengths = cut_long(lengths)
    packed = pack(lengths + 1)
    slots = np.zeros((sum(rows for rows, _ in packed), max(len(c) for _, c in packed)), int)
    at = 0
    for rows, content in packed:
        slots[at : at + rows, : len(content)] = content
        at += rows
    slots = rng.permutation(slots)
    places = np.cumsum(slots, axis=1) - slots + ROW * np.arange(len(slots))[:, None]
    slots, places, n_rows = slots[slots > 0], places[slots > 0], len(slots)
    # A random sentence of the right length for each slot.
    shuffled = rng.permutation(len(lengths))
    sentences = np.empty(len(lengths), int)
    sentences[np.argsort(slots, kind="stable")] = shuffled[
        np.argsort(lengths[shuffled], kind="stable")
    ]
    begin, lengths = begin[sentences], lengths[sentences]
    rows = np.full((3, n_rows * ROW), UNKNOWN, "int32")
    rows[2] = PADDING
    rows[:, places] = np.array([BOS, EOS, STARTS])[:, None]
    k = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    to = np.repeat(places + 1, lengths) + k
    rows[0, to] = ids[np.repeat(begin, lengths) + k]
    rows[1, to] = ids[np.repeat(begin + lengths - 1, lengths) - k]
    rows[2, to] = CONTINUES
    return rows.reshape(3, n_rows, ROW)


# The model, in functions of JAX. Weights have the names of the package; the weights of both
# directions of an LSTM are stacked.


def by_path(bilm):
    return {v.path.removeprefix(bilm.path + "/"): v for v in bilm.variables}


def read_params(model):
    params = {name: variable.numpy() for name, variable in by_path(model.bilm).items()}
    for name in [name for name in params if name.startswith("forward")]:
        pair = [params.pop(name.replace("forward", direction)) for direction in DIRECTIONS]
        params[name.replace("forward", "lstm")] = np.stack(pair)
    return params | {name: getattr(model, name).numpy() for name in SOFTMAX}


def write_params(params, model):
    for name, variable in by_path(model.bilm).items():
        stacked = name.replace("forward", "lstm").replace("backward", "lstm")
        value = params[stacked]
        variable.assign(value[int(name.startswith("backward"))] if stacked != name else value)
    for name in SOFTMAX:
        getattr(model, name).assign(params[name])


def make_loss(config, dtype):
    """Return a function from weights, rows and the characters of all tokens to the loss."""
    import jax
    import jax.numpy as jnp

    activation = {"relu": jax.nn.relu, "tanh": jnp.tanh}[config.activation]

    def einsum(equation, x, y):
        x, y = x.astype(dtype), y.astype(dtype)
        return jnp.einsum(equation, x, y, preferred_element_type=jnp.float32)

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def product(equation, x, y):
        return einsum(equation, x, y)

    def product_gradient(equation, saved, upstream):  # these products are in bfloat16 too
        x, y = saved
        of_x, of_y, of_out = equation.replace("->", ",").split(",")
        dx = einsum(f"{of_out},{of_y}->{of_x}", upstream, y).astype(x.dtype)
        return dx, einsum(f"{of_x},{of_out}->{of_y}", x, upstream).astype(y.dtype)

    product.defvjp(lambda eq, x, y: (einsum(eq, x, y), (x, y)), product_gradient)

    def clip(x, bound):
        return x if bound is None else jnp.clip(x, -bound, bound)

    def inside(x, bound):
        return True if bound is None else jnp.abs(x) < bound

    def char_cnn(p, characters):
        """All filters as one product with windows of the widest filter."""
        table = p["char_cnn/embeddings"]
        one_hot = (characters[..., None] == jnp.arange(len(table), dtype=characters.dtype)).astype(
            dtype
        )
        x = product("nkv,ve->nke", one_hot, table).astype(dtype)
        n, length, dim = x.shape
        widest = config.widest_filter
        x = jnp.pad(x, ((0, 0), (0, widest - 1), (0, 0)))
        windows = jnp.concatenate([x[:, i : i + length] for i in range(widest)], axis=-1)
        kernels, biases, masks = [], [], []
        for i, (width, count) in enumerate(config.filters):
            kernel = p[f"char_cnn/conv_{i}_kernel"]
            kernels.append(jnp.pad(kernel, ((0, widest - width), (0, 0), (0, 0))))
            biases.append(p[f"char_cnn/conv_{i}_bias"])
            masks.append(np.repeat(np.arange(length)[:, None] <= length - width, count, axis=1))
        kernel = jnp.concatenate(kernels, axis=-1).reshape(widest * dim, -1).astype(dtype)
        y = (windows.reshape(-1, widest * dim) @ kernel).reshape(n, length, -1)
        y = jnp.where(np.concatenate(masks, axis=1), y, -jnp.inf)
        x = activation(jnp.max(y, axis=1).astype(jnp.float32) + jnp.concatenate(biases))

        def dense(x, name):
            return product("np,pq->nq", x, p[f"{name}_kernel"]) + p[f"{name}_bias"]

        for i in range(config.n_highway):
            transform = jax.nn.relu(dense(x, f"char_cnn/highway_{i}/transform"))
            gate = jax.nn.sigmoid(dense(x, f"char_cnn/highway_{i}/gate"))
            x = gate * transform + (1 - gate) * x
        return dense(x, "char_cnn/projection") if config.has_projection else x

    @jax.custom_vjp
    def lstm(z, keep, recurrent, projection):
        return lstm_forward(z, keep, recurrent, projection)[0]

    def lstm_forward(z, keep, recurrent, projection):
        """Run both directions.

        ``z``: ``x W + b``, shape ``(steps, 2, rows, 4 * lstm_dim)``; ``keep``: 0 where a sentence
        starts, shape ``(steps, 1, rows, 1)``. Returns shape ``(steps, 2, rows, projection_dim)``.
        """
        recurrent, projection = recurrent.astype(dtype), projection.astype(dtype)

        def step(state, inputs):
            h, c = state
            z, keep = inputs
            h, c = h * keep, c * keep
            gates = z.astype(jnp.float32) + product("dbp,dpk->dbk", h, recurrent)
            i, f, candidate, o = jnp.split(gates, 4, axis=-1)
            i, f, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jax.nn.sigmoid(o)
            candidate = jnp.tanh(candidate)
            c = clip(f * c + i * candidate, config.cell_clip)
            h = product("dbh,dhp->dbp", o * jnp.tanh(c), projection)
            h = clip(h, config.projection_clip)
            gates = jnp.concatenate([i, f, candidate, o], axis=-1).astype(dtype)
            return (h, c), (h, gates, c.astype(dtype))

        state = [jnp.zeros((2, z.shape[2], width)) for width in projection.shape[:0:-1]]
        _, (hs, gates, cs) = jax.lax.scan(step, tuple(state), (z, keep), unroll=UNROLL)
        return hs, (hs, gates, cs, keep, recurrent, projection)

    def lstm_gradient(saved, upstream):
        hs, gates, cs, keep, recurrent, projection = saved

        def before(x):
            return jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]]) * keep.astype(x.dtype)

        def step(state, inputs):
            dh, dc = state
            upstream, h, gates, c, c_before, keep = inputs
            i, f, candidate, o = jnp.split(gates.astype(jnp.float32), 4, axis=-1)
            c, c_before = c.astype(jnp.float32), c_before.astype(jnp.float32)
            tanh_c = jnp.tanh(c)
            dr = jnp.where(inside(h, config.projection_clip), dh + upstream, 0).astype(dtype)
            dy = product("dbp,dhp->dbh", dr, projection)
            dc = jnp.where(inside(c, config.cell_clip), dc + dy * o * (1 - tanh_c**2), 0)
            dz = [
                dc * candidate * i * (1 - i),
                dc * c_before * f * (1 - f),
                dc * i * (1 - candidate**2),
                dy * tanh_c * o * (1 - o),
            ]
            dz = jnp.concatenate(dz, axis=-1).astype(dtype)
            dh = product("dbk,dpk->dbp", dz, recurrent) * keep
            return (dh, dc * f * keep), (dz, dr)

        state = jnp.zeros_like(hs[0]), jnp.zeros(cs.shape[1:])
        inputs = upstream, hs, gates, cs, before(cs), keep
        _, (dz, dr) = jax.lax.scan(step, state, inputs, reverse=True, unroll=UNROLL)
        o = gates[..., 3 * config.lstm_dim :].astype(jnp.float32)
        y = o * jnp.tanh(cs.astype(jnp.float32))
        d_recurrent = product("tdbp,tdbk->dpk", before(hs), dz)
        return dz, jnp.zeros_like(keep), d_recurrent, product("tdbh,tdbp->dhp", y, dr)

    lstm.defvjp(lstm_forward, lstm_gradient)

    def read(p, inputs, kind, characters, n_distinct):
        """Return the top outputs of both directions, and the number of distinct tokens."""
        is_present = jnp.zeros(len(characters), bool).at[inputs].set(True)
        [distinct] = jnp.nonzero(is_present, size=n_distinct, fill_value=UNKNOWN)
        place = jnp.zeros(len(characters), jnp.int32).at[distinct].set(jnp.arange(n_distinct))
        token = char_cnn(p, characters[distinct])
        x = jnp.swapaxes(token[place[inputs]].astype(dtype), 0, 1)
        keep = (kind != STARTS)[:, None, :, None].astype(jnp.float32)
        forget_bias = np.repeat([0, 1, 0, 0], config.lstm_dim).astype("float32")
        for layer in range(1, config.n_layers + 1):
            kernel, bias, recurrent, projection = (
                p[f"lstm_{layer}/{name}"]
                for name in ("kernel", "bias", "recurrent_kernel", "projection")
            )
            z = product("tdbp,dpk->tdbk", x, kernel) + (bias + forget_bias)[:, None]
            y = lstm(z.astype(dtype), keep, recurrent, projection)
            x = x + y if config.use_skip_connections and layer > 1 else y
        return jnp.swapaxes(x, 0, 1), is_present.sum()

    @jax.custom_vjp
    def softmax_loss(x, targets, weights, kernel, bias):
        return softmax_forward(x, targets, weights, kernel, bias)[0]

    def softmax_forward(x, targets, weights, kernel, bias):
        """Compute the loss and its gradient part by part."""
        low = kernel.astype(dtype)

        def part(sums, inputs):
            loss, d_kernel, d_bias = sums
            x, target, weight = inputs
            logits = product("np,vp->nv", x, low) + bias
            log_total = jax.nn.logsumexp(logits, axis=-1)
            true = jnp.take_along_axis(logits, target[:, None], axis=-1)[:, 0]
            is_true = target[:, None] == jnp.arange(logits.shape[1])
            errors = jnp.exp(logits - log_total[:, None]) - is_true
            errors = (errors * weight[:, None]).astype(dtype)
            loss += (weight * (log_total - true)).sum()
            d_kernel += product("nv,np->vp", errors, x)
            d_bias += errors.astype(jnp.float32).sum(axis=0)
            return (loss, d_kernel, d_bias), product("nv,vp->np", errors, low)

        inputs = [a.reshape(SOFTMAX_PARTS, -1, *a.shape[1:]) for a in (x, targets, weights)]
        sums = jnp.zeros(()), jnp.zeros(kernel.shape), jnp.zeros(bias.shape)
        (loss, d_kernel, d_bias), dx = jax.lax.scan(part, sums, tuple(inputs))
        return loss, (dx.reshape(x.shape), d_kernel, d_bias)

    def softmax_gradient(saved, upstream):
        dx, d_kernel, d_bias = saved
        return upstream * dx, None, None, upstream * d_kernel, upstream * d_bias

    softmax_loss.defvjp(softmax_forward, softmax_gradient)

    def loss(p, rows, characters, n_distinct):
        """Return the mean loss in nats per prediction, and the number of distinct tokens."""
        rows = jnp.swapaxes(rows, 1, 2)  # steps first
        inputs, kind = rows[:2], rows[2]
        x, n = read(p, inputs, kind, characters, n_distinct)
        is_last = jnp.concatenate([kind[1:], jnp.full_like(kind[:1], PADDING)]) != CONTINUES
        targets = jnp.roll(inputs, -1, axis=1)
        targets = jnp.where(is_last, jnp.array([EOS, BOS])[:, None, None], targets)
        targets = jnp.where(targets < len(p["softmax_bias"]), targets, UNKNOWN)
        is_real = kind != PADDING
        weights = jnp.broadcast_to(is_real / (2 * is_real.sum()), targets.shape)
        x = x.reshape(-1, x.shape[-1])
        kernel, bias = (p[name] for name in SOFTMAX)
        return softmax_loss(x, targets.ravel(), weights.ravel(), kernel, bias), n

    return loss


# Training.


def uses_muon(name):
    return name.endswith(("kernel", "projection")) and "conv" not in name and "softmax" not in name


def newton_schulz(x, jnp):
    is_tall = x.shape[-2] > x.shape[-1]
    x = jnp.swapaxes(x, -1, -2) if is_tall else x
    norm = jnp.sqrt((x**2).sum((-2, -1), keepdims=True))
    x = (x / (norm + 1e-7)).astype(jnp.bfloat16)
    for _ in range(5):
        gram = x @ jnp.swapaxes(x, -1, -2)
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    x = x.astype(jnp.float32)
    return jnp.swapaxes(x, -1, -2) if is_tall else x


def make_trainer(loss, n_distinct, clip_norm=5.0):
    """Return a compiled function that trains on several batches."""
    import jax
    import jax.numpy as jnp

    def step(state, batch, rate, characters):
        params, m, v, count = state
        (value, n), grads = jax.value_and_grad(loss, has_aux=True)(
            params, batch, characters, n_distinct
        )
        norm = jnp.sqrt(sum((g**2).sum() for g in grads.values()))
        count += 1
        new: tuple = {}, {}, {}, count
        for name, p in params.items():
            g = grads[name] * jnp.minimum(1.0, clip_norm / norm)
            if uses_muon(name):
                new[1][name], new[2][name] = 0.95 * m[name] + g, v[name]
                update = newton_schulz(g + 0.95 * new[1][name], jnp)
                new[0][name] = p - rate * 0.2 * max(p.shape[-2:]) ** 0.5 * update
            else:
                new[1][name] = 0.9 * m[name] + 0.1 * g
                new[2][name] = 0.999 * v[name] + 0.001 * g**2
                alpha = rate * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
                new[0][name] = p - alpha * new[1][name] / (jnp.sqrt(new[2][name]) + 1e-7)
        # A step whose gradient is not finite changes nothing.
        new = jax.tree.map(lambda a, b: jnp.where(jnp.isfinite(norm), a, b), new, state)
        return new, (value, n)

    @functools.partial(jax.jit, donate_argnums=0)
    def train(state, batches, rate, characters):
        return jax.lax.scan(lambda s, batch: step(s, batch, rate, characters), state, batches)

    return train


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("corpus", type=pathlib.Path, help="folder of keras-elmo prepare")
    parser.add_argument("output", type=pathlib.Path, help="folder of the preset to write")
    parser.add_argument("--init-from", required=True, help="preset that starts the training")
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--rows", type=int, default=192, help=f"rows of {ROW} tokens in a batch")
    parser.add_argument(
        "--distinct", type=int, default=6144, help="most distinct tokens of a batch"
    )
    parser.add_argument("--learning-rate", type=float, default=0.004)
    parser.add_argument("--bits", type=int, default=11, help="significant bits of the weights")
    parser.add_argument("--precision", default="bfloat16", choices=("bfloat16", "float32"))
    args = parser.parse_args()

    os.environ.setdefault("KERAS_BACKEND", "jax")
    import jax
    import jax.numpy as jnp

    from keras_elmo.pretraining import read_language_model, tokenizer_of, write_language_model

    if args.output.exists():
        parser.error(f"Expected a new output folder. Received: {args.output}, which exists")
    vocabulary = (args.corpus / "vocab.txt").read_text("utf-8").rstrip("\n").split("\n")
    model, vocabulary = read_language_model(args.init_from, vocabulary)
    tokenizer = tokenizer_of(args.corpus, args.init_from)
    if model.config.projection_dim == model.config.lstm_dim:
        parser.error("--init-from must be a biLM whose LSTMs have a projection")
    tokens, texts = read_corpus(args.corpus, vocabulary)
    characters = model.config.alphabet.rows([token.encode() for token in tokens]).astype("uint16")
    train_text = texts.pop("train")
    heldout = {name: make_rows(*text, seed=0) for name, text in texts.items()}

    characters = jax.device_put(characters)
    loss = make_loss(model.config, jnp.dtype(args.precision))
    score = jax.jit(functools.partial(loss, n_distinct=args.distinct))
    params = jax.tree.map(jnp.asarray, read_params(model))
    zeros = [jax.tree.map(jnp.zeros_like, params) for _ in range(2)]
    state = (params, *zeros, jnp.zeros(()))
    train = make_trainer(loss, args.distinct)

    def check_distinct(n):
        if n > args.distinct:
            raise SystemExit(f"A batch has {n} distinct tokens: pass --distinct")

    def perplexities():
        found = []
        for name, rows in heldout.items():
            missing = -rows.shape[1] % args.rows
            empty = np.full((3, missing, ROW), PADDING, "int32")
            rows = np.concatenate([rows, empty], axis=1)
            batches = np.split(rows, rows.shape[1] // args.rows, axis=1)
            n = np.array([(batch[2] != PADDING).sum() for batch in batches])
            nll, distinct = zip(*(score(state[0], batch, characters) for batch in batches))
            check_distinct(max(map(int, distinct)))
            nll = np.average([float(x) for x in nll], weights=n)
            found.append(f"{name} {np.exp(nll):.2f}")
        return ", ".join(found)

    print(f"perplexity: {perplexities()}", flush=True)
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        upcoming = pool.submit(make_rows, *train_text, seed=0)
        rows = upcoming.result()
        chunk = min(25, rows.shape[1] // args.rows)  # batches between two readings of the clock
        if not chunk:
            raise SystemExit(f"The corpus fills {rows.shape[1]} rows: pass fewer --rows")
        size = args.rows * chunk
        read, shown, started = 0, 0.0, None
        for epoch in itertools.count():
            upcoming = pool.submit(make_rows, *train_text, seed=epoch + 1)
            for at in range(0, rows.shape[1] - size + 1, size):
                share = 0.0 if started is None else (time.time() - started) / (60 * args.minutes)
                if share >= 1:
                    break
                rate = args.learning_rate * min(1, share / 0.02 + 0.02, (1 - share) / 0.9)
                batches = rows[:, at : at + size].reshape(3, chunk, args.rows, ROW)
                state, (values, n) = train(state, np.swapaxes(batches, 0, 1), rate, characters)
                values = np.asarray(values)  # waits for the device
                started = started or time.time()  # after the compilation
                check_distinct(int(n.max()))
                read += int((batches[0] > UNKNOWN).sum())
                if share >= shown:
                    seconds = time.time() - started
                    print(
                        f"{seconds:.0f} s, epoch {epoch}, {read / 1e6:.1f} million tokens, "
                        f"learning rate {rate:.5f}, loss {values.mean():.4f}",
                        flush=True,
                    )
                    shown += 0.02
            if share >= 1:
                break
            rows = upcoming.result()
    print(f"perplexity: {perplexities()}", flush=True)
    write_params(state[0], model)
    write_language_model(args.output, model, vocabulary, bits=args.bits, tokenizer=tokenizer)


if __name__ == "__main__":
    main()
