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

    embed = commands.add_parser(
        "embed",
        help="embed a file of tokenised sentences",
        description="Embed tokenised sentences, one a line, into an hdf5 file, a dataset each.",
    )
    embed.add_argument("preset", metavar="PRESET", help="as for info")
    embed.add_argument("input", metavar="INPUT", help="a UTF-8 text file, or - for stdin")
    embed.add_argument("output", metavar="OUTPUT", help="the hdf5 file to write")
    embed.add_argument("--layers", choices=("all", "top", "average"), default="all")
    embed.add_argument("--float16", action="store_true", help="store half precision")
    embed.add_argument("--compression", choices=("gzip", "lzf"))
    embed.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    embed.add_argument("--batch-tokens", type=int, default=2048, help="tokens in a batch")
    embed.add_argument("--resume", action="store_true", help="go on with an interrupted run")
    embed.add_argument("--quiet", action="store_true", help="no progress bar")
    embed.add_argument("--json", action="store_true", help="print the counts as one JSON object")
    embed.set_defaults(run=_embed)
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
        _print_lines(facts | facts.pop("options"))
    return 0


def _embed(arguments) -> int:
    from keras_elmo.embedding import Embedder

    embedder = Embedder(
        arguments.preset, dtype=arguments.dtype, batch_tokens=arguments.batch_tokens
    )
    if arguments.input == "-":
        sys.stdin.reconfigure(encoding="utf-8", newline="\n")
        arguments.input = sys.stdin
    counts = embedder.embed_file(
        arguments.input,
        arguments.output,
        layers=arguments.layers,
        float16=arguments.float16,
        compression=arguments.compression,
        resume=arguments.resume,
        progress=not arguments.quiet,
    )
    if arguments.json:
        print(json.dumps(counts))
    else:
        _print_lines(counts)
    return 0


def _print_lines(facts):
    for name, value in facts.items():
        print(f"{name:15} {value}")


if __name__ == "__main__":
    sys.exit(main())
