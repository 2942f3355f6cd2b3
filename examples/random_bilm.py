"""Write a small biLM with random weights, so that the examples run without a download.

    python examples/random_bilm.py DIRECTORY

The directory then holds options.json and weights.hdf5 in bilm-tf's layout. The biLM
knows nothing of any language; use it to try code, not to judge ELMo.
"""

import argparse

import keras_elmo


def write_random_bilm(directory):
    config = keras_elmo.BiLMConfig(
        filters=((1, 16), (2, 16), (3, 32), (4, 64)), n_highway=1, lstm_dim=128, projection_dim=32
    )
    layer = keras_elmo.ElmoLayer(config)
    layer.build((None, None, config.max_characters_per_token))
    layer.save_hdf5(directory)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory")
    write_random_bilm(parser.parse_args().directory)
