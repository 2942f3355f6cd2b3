"""The command line: a thin face over the package."""

import argparse
import json
import sys


def main(argv=None) -> int:
    """Run ``keras-elmo``; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="keras-elmo", description="Deep contextualized word representations for Keras 3."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser(
        "info",
        help="show what a preset holds",
        description="Show the sizes of the biLM in a preset, and check its files.",
    )
    info.add_argument(
        "preset",
        metavar="PRESET",
        help="a bundled name, or a directory or .zip with options.json and weights.hdf5",
    )
    info.add_argument("--json", action="store_true", help="print one JSON object")
    info.set_defaults(run=_info)
    arguments = parser.parse_args(argv)
    try:
        return arguments.run(arguments)
    except (OSError, ValueError) as error:
        print(f"keras-elmo {arguments.command}: {error}", file=sys.stderr)
        return 1


def _info(arguments) -> int:
    from keras_elmo.layers.elmo_layer import ElmoLayer

    layer = ElmoLayer.from_preset(arguments.preset)
    config = layer.config
    facts = {
        "preset": arguments.preset,
        "parameters": layer.count_params(),
        "layers": config.n_layers + 1,
        "width": 2 * config.projection_dim,
        "max_characters": config.max_characters_per_token,
        "fingerprint": layer.fingerprint(),
        "options": config.to_options(),
    }
    if arguments.json:
        print(json.dumps(facts))
    else:
        facts |= facts.pop("options")
        for name, value in facts.items():
            print(f"{name:15} {value}")
    return 0
