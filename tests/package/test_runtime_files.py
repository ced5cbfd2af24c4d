"""The runtime's files in a package: fewer, shorter, the same code."""

from __future__ import annotations

import re

from webmlc.package.runtime_files import join_modules, runtime_files, without_comments


def test_one_module_holds_what_pages_and_workers_share() -> None:
    files = {name: data.decode() for name, data in runtime_files().items()}
    scripts = {name: text for name, text in files.items() if name.endswith(".js")}
    assert not re.search(r"^import ", scripts["webmlc.js"], re.MULTILINE)
    imported = {i for text in scripts.values() for i in re.findall(r'"\./(\w+\.js)"', text)}
    assert imported == scripts.keys() - {"index.js"}  # index.html's own
    for name in ("load", "InputError", "Leader", "help"):
        assert re.search(rf"^export .*\b{name}\b", scripts["webmlc.js"], re.MULTILINE)


def test_a_module_comes_after_what_it_imports() -> None:
    scripts = {
        "webmlc.js": 'export { b } from "./b.js";\n',
        "b.js": 'import { a } from "./a.js";\nexport const b = () => import("./lazy.js");\n',
        "a.js": "export const a = 1;\n",
        "lazy.js": 'import { a } from "./a.js";\nimport { c } from "./c.js";\n',
        "c.js": "export const c = 1;\n",
    }
    assert join_modules(scripts) == {
        "webmlc.js": 'export const a = 1;\nexport const b = () => import("./lazy.js");\n',
        "lazy.js": 'import { a } from "./webmlc.js";\nimport { c } from "./c.js";\n',
        "c.js": "export const c = 1;\n",
    }


def test_scripts_lose_comments_and_indentation() -> None:
    script = """// What this file is.

/**
 * Adds.
 * @param {number} a
 */
export function add(a) {
  // One more.
  const text = "// no comment"; // Why.
  /** @type {number} */
  const b = /** @type {number} */ (a);
  return b + 1;
}
"""
    assert (
        without_comments(script)
        == """export function add(a) {
const text = "// no comment";
const b = (a);
return b + 1;
}
"""
    )
