"""Code that differs between TensorFlow, JAX and PyTorch."""
