"""Read TensorFlow Lite (LiteRT) files without TensorFlow."""
