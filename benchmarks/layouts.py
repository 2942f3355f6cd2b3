"""Time the matrix products of one LSTM step in TensorFlow for several layouts of the kernels.

    python benchmarks/layouts.py [--rows 92 1]

Prints milliseconds for h x (512 x 16384) and m x (4096 x 512), the original size. ``plain`` is the
layout of the layers; ``constant`` has the weights as constants of the graph; ``transposed`` stores
both kernels transposed. The time of transposing is printed separately. Run it on an idle machine,
also with TF_ENABLE_ONEDNN_OPTS=0.
"""

import argparse

import numpy as np
import tensorflow as tf
from limit import cpu_name, seconds

WIDTH, SIZE, STEPS = 512, 4096, 10


def looped(recurrent, project):
    """Return a function that runs ``STEPS`` steps, each on the result of the step before."""

    def step(k, h):
        m = recurrent(h)[:, :SIZE]
        return k + 1, tf.clip_by_value(project(m), -3.0, 3.0)

    def run(h):
        return tf.while_loop(lambda k, h: k < STEPS, step, (0, h), parallel_iterations=1)[1]

    return tf.function(run)


def layouts():
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(WIDTH, 4 * SIZE)).astype("float32") / 30
    projection = rng.normal(size=(SIZE, WIDTH)).astype("float32") / 64
    u, p = tf.Variable(kernel), tf.Variable(projection)
    ut, pt = tf.Variable(kernel.T.copy()), tf.Variable(projection.T.copy())
    cu, cp = tf.constant(kernel), tf.constant(projection)
    gates = [tf.Variable(part) for part in np.split(kernel, 4, axis=1)]

    def half(x, w):
        return tf.cast(tf.cast(x, "bfloat16") @ tf.cast(w, "bfloat16"), "float32")

    return {
        "plain": looped(lambda h: h @ u, lambda m: m @ p),
        "transposed": looped(
            lambda h: tf.matmul(h, ut, transpose_b=True),
            lambda m: tf.matmul(m, pt, transpose_b=True),
        ),
        "only the wide one transposed": looped(
            lambda h: tf.matmul(h, ut, transpose_b=True), lambda m: m @ p
        ),
        "batch on the right": looped(
            lambda h: tf.transpose(tf.matmul(u, h, transpose_a=True, transpose_b=True)),
            lambda m: m @ p,
        ),
        "constant": looped(lambda h: h @ cu, lambda m: m @ cp),
        "a product for each gate": looped(
            lambda h: tf.concat([h @ g for g in gates], -1), lambda m: m @ p
        ),
        "bfloat16": looped(lambda h: half(h, u), lambda m: half(m, p)),
        "the transposition, a step's share": tf.function(lambda h: tf.transpose(u) + h[0, 0]),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[92, 1])
    arguments = parser.parse_args()
    print(cpu_name())
    for rows in arguments.rows:
        h = tf.random.normal((rows, WIDTH))
        for name, run in layouts().items():
            run(h)
            took = seconds(lambda run=run, h=h: run(h).numpy(), 5)
            print(f"{rows} rows, {name}: {1000 * took / STEPS:.2f} ms", flush=True)


if __name__ == "__main__":
    main()
