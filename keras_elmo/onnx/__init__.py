"""The biLM as an ONNX graph, for programs without Keras or Python."""
