"""What is trained: the biLM with its softmax, and how a wider one starts from a narrower."""
