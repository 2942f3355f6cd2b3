"""Average the weights of two presets of equal sizes (Wortsman et al., 2022).

    keras-elmo export run tuned
    python examples/average.py tuned elmo_small_en averaged --share 0.3

Both presets need vocab.txt and softmax.hdf5, and a common ancestor: usually the second preset is
the one that the first was fine-tuned from. The average then recovers part of what the fine-tuning
has unlearned. It predicts the vocabulary of the first preset.

Reference: Wortsman et al., 2022, https://arxiv.org/abs/2109.01903.
"""

import argparse

from keras_elmo.pretraining import read_language_model, tokenizer_of, write_language_model


def average(preset, other, share):
    """Return a model whose weights are ``share`` of the other preset's, and its vocabulary."""
    model, vocabulary = read_language_model(preset)
    second, _ = read_language_model(other, vocabulary)
    if second.config != model.config:
        raise SystemExit(f"Expected presets of equal sizes. Received: {preset} and {other}")
    for weight, other_weight in zip(model.weights, second.weights, strict=True):
        weight.assign((1 - share) * weight.numpy() + share * other_weight.numpy())
    return model, vocabulary


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("preset")
    parser.add_argument("other", help="preset that the first was fine-tuned from")
    parser.add_argument("output", help="directory of the averaged preset")
    parser.add_argument("--share", type=float, default=0.5, help="share of the other's weights")
    arguments = parser.parse_args()
    model, vocabulary = average(arguments.preset, arguments.other, arguments.share)
    share = arguments.share
    card = f"# {1 - share:g} of {arguments.preset} and {share:g} of {arguments.other}"
    tokenizer = tokenizer_of(arguments.preset)
    write_language_model(arguments.output, model, vocabulary, card, tokenizer=tokenizer)
    print(f"{model.count_params():,} weights averaged: {arguments.output}")


if __name__ == "__main__":
    main()
