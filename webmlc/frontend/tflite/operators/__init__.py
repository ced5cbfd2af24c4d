"""The table of TensorFlow Lite operators, by what they compute."""
