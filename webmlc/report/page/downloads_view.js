// The downloads of a page for the current program.

import { build, byId, byteText, countText } from "./parts.js";

/** @import { State } from "./state.js" */

/** @param {State} state */
export function openDownloads(state) {
  const panel = byId("downloads");
  let shown = "";
  const show = () => {
    if (panel.hidden || shown === state.device) return;
    shown = state.device;
    panel.replaceChildren(...content(state));
  };
  state.listen(show);
  return show;
}

/** @param {State} state */
function content(state) {
  const all = state.data.downloads.filter(({ devices }) => devices.includes(state.device));
  const modules = all.filter(({ path }) => /^model\..*\.wasm/.test(path)).map(({ path }) => path);
  const module = modules.find((path) => path.includes("relaxed")); // a page downloads one of the modules
  const files = all.filter(({ path }) => !modules.includes(path) || path === module);
  const total = files.reduce((sum, { bytes }) => sum + bytes, 0);
  const kinds = new Map();
  for (const { kind, bytes } of files) kinds.set(kind, (kinds.get(kind) ?? 0) + bytes);
  const parts = [...kinds].sort((a, b) => b[1] - a[1]);
  const bar = build("div", { className: "kinds", role: "img", "aria-label": parts.map(([kind, bytes]) => `${kind}: ${byteText(bytes)}`).join(", ") });
  for (const [kind, bytes] of parts) {
    const part = build("span", { className: `k-${kind}`, title: `${kind}: ${byteText(bytes)}` });
    part.style.flex = `${bytes} 0 2px`;
    bar.append(part);
  }
  const swatch = (/** @type {string} */ kind) => build("span", {}, build("span", { className: `swatch k-${kind}` }), kind);
  const { tensors } = state.data;
  return [
    build("h2", {}, `${byteText(total)} in ${countText(files.length, "file")}`),
    build("p", { className: "note" }, `Bytes as stored: code is compressed. Of ${countText(modules.length, "WebAssembly module")} a browser downloads one. The page of the package (index.js) counts as well.`),
    bar,
    table(["File", "Class", "Bytes"], files.map(({ path, kind, bytes }) => [path, swatch(kind), bytes.toLocaleString("en")])),
    ...(tensors.length ? [build("h3", {}, "Largest tensors of the weights"), table(["Tensor", "Type", "Bytes"], tensors.map(({ name, type, bytes }) => [name, type, bytes.toLocaleString("en")]))] : []),
  ];
}

/** @param {string[]} heads @param {(string | Node)[][]} rows */
function table(heads, rows) {
  const cell = (/** @type {string} */ tag) => (/** @type {string | Node} */ content, /** @type {number} */ i) => build(tag, { className: i === 2 ? "figure" : "" }, content);
  return build("table", {}, build("thead", {}, build("tr", {}, ...heads.map(cell("th")))), build("tbody", {}, ...rows.map((row) => build("tr", {}, ...row.map(cell("td"))))));
}
