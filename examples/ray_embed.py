"""Embed sentences on a Ray cluster, and write them with their layers to Parquet.

    pip install -e '.[ray]'
    python examples/ray_embed.py elmo_small_en sentences.txt layers --actors 4

The input is a text with one tokenised sentence a line, or Parquet with the column of ``--column``.
All paths must exist on every node. The program prints the shape of the first sentence, as a
reader of the Parquet gets it.
"""

import argparse
import pathlib

import pyarrow.parquet
import ray

from keras_elmo.ray import EmbedBatch, read_layers


def embed(preset, source, output, column="tokens", layers="top", actors=1, cpus=1):
    """Write the rows of a text or of Parquet to a folder of Parquet, with the column ``layers``."""
    if source.endswith(".txt"):
        rows = ray.data.read_text(source, drop_empty_lines=False)
        rows = rows.rename_columns({"text": column})
    else:
        rows = ray.data.read_parquet(source)
    rows.map_batches(
        EmbedBatch,
        fn_constructor_args=[preset],
        fn_constructor_kwargs={"column": column, "layers": layers, "float16": True},
        batch_format="pyarrow",
        batch_size=500,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=actors),
        num_cpus=cpus,
    ).write_parquet(output)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("preset")
    parser.add_argument("source")
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--column", default="tokens")
    parser.add_argument("--layers", default="top", choices=["all", "top", "average"])
    parser.add_argument("--actors", type=int, default=1, help="the largest number of processes")
    parser.add_argument("--cpus", type=int, default=1, help="CPUs of each process")
    arguments = parser.parse_args()
    output = str(arguments.output.absolute())
    ray.init(ignore_reinit_error=True, log_to_driver=False)
    embed(**{**vars(arguments), "output": output})
    first = pyarrow.parquet.read_table(output).slice(0, 1)
    print(first[arguments.column][0])
    print(read_layers(first)[0].shape)


if __name__ == "__main__":
    main()
