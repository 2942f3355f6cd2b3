"""Write a small biLM with random weights, to try code without a download.

    python examples/random_bilm.py DIRECTORY

The directory then contains options.json and weights.hdf5 in the layout of bilm-tf. The biLM
has learned nothing, so its representations say nothing about the quality of ELMo.
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory")
    write_random_bilm(parser.parse_args().directory)
