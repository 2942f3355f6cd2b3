"""The text: files, tokens, vocabulary, batches."""
