"""Train a biLM on raw text, and measure it."""
