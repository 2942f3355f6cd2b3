"""Tokenizers: text to tokens, and tokens to character ids."""
