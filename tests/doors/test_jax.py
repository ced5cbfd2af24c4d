"""Functions of JAX compute what JAX computes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.doors.built import build_and_run
from webmlc.core.errors import UserError
from webmlc.frontend.doors.export_source import export_source

GENERATOR = np.random.default_rng(0)
WEIGHTS = {
    "hidden": GENERATOR.standard_normal((4, 8)).astype(np.float32),
    "output": GENERATOR.standard_normal((8, 3)).astype(np.float32),
}
FEATURES = GENERATOR.standard_normal((5, 4)).astype(np.float32)
SCALE = GENERATOR.standard_normal((5, 3)).astype(np.float32)


def perceptron(features: jax.Array, scale: jax.Array) -> dict[str, jax.Array]:
    hidden = jax.nn.gelu(features @ WEIGHTS["hidden"])
    hidden = (hidden - hidden.mean(-1, keepdims=True)) / jnp.sqrt(hidden.var(-1, keepdims=True) + 1)
    logits = hidden @ WEIGHTS["output"] * scale
    return {"probabilities": jax.nn.softmax(logits), "energy": jax.nn.logsumexp(logits, axis=-1)}


@pytest.mark.parametrize(
    "options",
    [
        {"example_inputs": [("batch", 4), ("batch", 3)]},
        {
            "example_inputs": {"scale": SCALE, "features": FEATURES},
            "dynamic_shapes": {"features": {0: "batch"}, "scale": {0: "batch"}},
        },
    ],
    ids=["shapes", "arrays"],
)
def test_a_function_equals_jax(options: dict[str, object]) -> None:
    built = build_and_run(perceptron, {"features": FEATURES, "scale": SCALE}, **options)
    built.assert_close(perceptron(FEATURES, SCALE))
    assert built.manifest.name == "perceptron"
    assert built.types()["features"] == "float32[batch, 4]"
    assert built.types()["energy"] == "float32[batch]"


def test_a_compiled_function_equals_jax() -> None:
    kernel = jnp.ones((3, 3, 1, 2), jnp.float32)

    @jax.jit
    def edges(image: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(
            image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    image = GENERATOR.standard_normal((1, 8, 8, 1)).astype(np.float32)
    built = build_and_run(edges, {"image": image}, example_inputs=image)
    built.assert_close({"output": edges(image)})


def test_nested_results_are_named_by_their_paths() -> None:
    def moments(features: jax.Array) -> dict[str, Any]:
        return {"mean": features.mean(), "more": (features.max(), {"least": features.min()})}

    model = export_source(moments, [("batch", 4)])
    assert [port.name for port in model.graph.output] == ["mean", "more.0", "more.1.least"]
    model = export_source(lambda x: (x + 1, x * 2), [("batch", 4)])
    assert [port.name for port in model.graph.output] == ["output_0", "output_1"]


def test_a_function_needs_an_example() -> None:
    with pytest.raises(UserError, match="perceptron does not say what its inputs are"):
        export_source(perceptron)
    with pytest.raises(UserError, match="no argument 'colour'"):
        export_source(perceptron, {"colour": FEATURES})
