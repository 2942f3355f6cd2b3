"""Turn sentences into layer representations, as NumPy arrays or as a file."""
