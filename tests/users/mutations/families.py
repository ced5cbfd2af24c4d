"""The families of models by name."""

from tests.users.mutations.family import Family
from tests.users.mutations.gguf_family import GgufFamily
from tests.users.mutations.onnx_family import OnnxFamily

FAMILIES: dict[str, Family] = {"onnx": OnnxFamily(), "gguf": GgufFamily()}
