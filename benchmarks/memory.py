"""Measure peak memory of ``keras-elmo embed`` for few and many sentences: it must not grow.

    python benchmarks/memory.py [--sentences 10000 100000]

Each run is a separate process, with a small random biLM and sentences of random words.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import keras_elmo

MEASURED = """
import json, resource, sys
from keras_elmo.cli import main
main(sys.argv[1:])
print(json.dumps({"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, nargs="+", default=[10_000, 100_000])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        config = keras_elmo.BiLMConfig(
            filters=((1, 16), (2, 16), (3, 32)), n_highway=1, lstm_dim=64, projection_dim=32
        )
        layer = keras_elmo.ElmoLayer(config)
        layer.build((None, None, 50))
        layer.save_hdf5(folder / "preset")
        letters = "abcdefghijklmnopqrstuvwxyz"
        words = ["".join(random.choices(letters, k=random.randint(1, 10))) for _ in range(50_000)]
        for count in arguments.sentences:
            with open(folder / "in.txt", "w") as file:
                for _ in range(count):
                    file.write(" ".join(random.choices(words, k=random.randint(2, 36))) + "\n")
            command = [
                "embed",
                folder / "preset",
                folder / "in.txt",
                folder / "out.hdf5",
                "--quiet",
            ]
            finished = subprocess.run(
                [sys.executable, "-c", MEASURED, *command, "--json"],
                capture_output=True,
                text=True,
                check=True,
            )
            counts, memory = map(json.loads, finished.stdout.splitlines())
            (folder / "out.hdf5").unlink()
            print(
                f"{count} sentences, {counts['tokens']} tokens: peak {memory['peak_mib']:.0f} MiB, "
                f"{counts['tokens_per_s']:.0f} tokens/s"
            )


if __name__ == "__main__":
    main()
