"""The types of a package: what TypeScript accepts and refuses of a model's inputs and outputs."""

import subprocess
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from tests.packages import parts
from webmlc.core.dtypes import DType
from webmlc.package.manifest import Port
from webmlc.package.write import write_package

ROOT = Path(__file__).parents[2]
USES = """\
import { load } from "./webmlc.js";
import type { Model } from "./model.d.ts";

const model = await load<Model>("./");
const data = new Float32Array(8);
const x = { dtype: "float32", shape: [2, 4], data } as const;
const mask = new Uint8Array(3);
const long = new BigInt64Array(8);
const { y } = await model.run({ x: { ...x, shape: [2, 4] }, "*/mask": mask });
const values: Float32Array = y.data;
const [rows, columns]: [number, 4] = y.shape;
const session = await model.session({ capacity: 2 });
await session.run({ x: { ...x, shape: [2, 4] }, "*/mask": mask });
const chosen = { outputs: ["y"], results: { y: new Float32Array(8) } } as const;
(await model.run({ x: { ...x, shape: [2, 4] }, "*/mask": mask }, chosen)).y;
// @ts-expect-error: no output has this name
await model.run({ x: { ...x, shape: [2, 4] }, "*/mask": mask }, { outputs: ["z"] });
// @ts-expect-error: a size of `x` is symbolic
await model.run({ x: data, "*/mask": mask });
// @ts-expect-error: an input is missing
await model.run({ x: { ...x, shape: [2, 4] } });
// @ts-expect-error: another element type
await model.run({ x: { dtype: "int64", shape: [2, 4], data: long }, "*/mask": mask });
// @ts-expect-error: another shape
await model.run({ x: { ...x, shape: [2, 5] }, "*/mask": mask });
// @ts-expect-error: no such output
(await model.run({ x: { ...x, shape: [2, 4] }, "*/mask": mask })).z;
console.log(values, rows, columns);
"""


def test_typescript_knows_the_inputs_and_outputs_of_a_package(tmp_path: Path) -> None:
    model = parts()
    mask = Port("*/mask", DType.bool, (3,), model.manifest.inputs[0].buffer)
    inputs = (*model.manifest.inputs, mask)
    manifest = structs.replace(model.manifest, name="two\nlines", inputs=inputs)
    write_package(tmp_path, replace(model, manifest=manifest))
    text = (tmp_path / "model.d.ts").read_text()
    assert text.startswith("// The types of two lines, ")
    assert "/** float32 [n, 4] */\n  x: " in text
    (tmp_path / "use.ts").write_text(USES)
    process = subprocess.run(
        [
            "npx", "--no-install", "tsc", "--ignoreConfig", "--noEmit", "--strict",
            "--target", "ES2022", "--module", "ESNext", "--moduleResolution", "bundler",
            "--allowImportingTsExtensions", "--types", "", "--lib", "ES2022,DOM",
            str(tmp_path / "use.ts"),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stdout
