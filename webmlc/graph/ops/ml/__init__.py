"""The operators of ai.onnx.ml: encoders, linear models, trees."""
