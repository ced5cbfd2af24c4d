// The selection: the node, the kernel that computes it, and how that was made.

import { build, byId, byteText, countText, short, timeText } from "./parts.js";

/** @import { State } from "./state.js" */
/** @import { Code, Step } from "./types.d.ts" */

const MOST_CHIPS = 60; // buttons in one list
const DEVICE_NAMES = { wasm: "CPU (WebAssembly)", webgpu: "GPU (WGSL)" };

/** @param {State} state */
export function openDetails(state) {
  const show = () => {
    const { node, step } = state.selection;
    byId("selected").replaceChildren(
      ...(node === undefined && step === undefined ? overview(state) : []),
      ...(node === undefined ? [] : nodePart(state, node)),
      ...(step === undefined ? [] : stepPart(state, step)),
    );
  };
  state.listen(show);
  show();
}

/** A list of terms and their values. @param {[string, Node | string | number | undefined][]} rows */
function facts(rows) {
  const list = build("dl", { className: "facts" });
  for (const [term, value] of rows) if (value !== undefined && value !== "") list.append(build("dt", {}, term), build("dd", {}, typeof value === "number" ? String(value) : value));
  return list;
}

/** Buttons. @param {{ text: string, go?: () => void, current?: boolean }[]} items */
function chips(items) {
  const list = build("div", { className: "chips" });
  for (const { text, go, current } of items.slice(0, MOST_CHIPS)) {
    list.append(go ? build("button", { type: "button", className: current ? "current" : "", onclick: go }, text) : build("code", {}, text));
  }
  if (items.length > MOST_CHIPS) list.append(build("span", { className: "note" }, `and ${items.length - MOST_CHIPS} more`));
  return list;
}

/** The text of the page before anything is selected. @param {State} state */
function overview(state) {
  const { data } = state;
  const names = (/** @type {{ name: string, type: string }[]} */ ports) => ports.map(({ name, type }) => `${name}: ${type}`).join("; ");
  const sizes = Object.entries(data.symbols).map(([name, size]) => `${name} = ${size}`).join(", ");
  const fates = new Map();
  for (const { fate = "" } of data.nodes) fates.set(fate, (fates.get(fate) ?? 0) + 1);
  const counts = [...fates].filter(([fate]) => fate).map(([fate, count]) => `${count.toLocaleString("en")} ${fate}`);
  return [
    build("h2", {}, data.name),
    facts([
      ["Inputs", names(data.inputs)],
      ["Outputs", names(data.outputs)],
      ["Sizes", sizes && `${sizes} (the figures hold for these)`],
      ["Nodes", countText(data.nodes.length, "node")],
      ["Without a kernel", counts.join(", ")],
      ["Steps", `${countText(state.program.steps.length, "step")}, which call ${countText(state.program.kernels.length, "kernel")}`],
      ["Operators of your own", data.operators.map(({ operator, nodes, from }) => `${operator} (${countText(nodes, "node")}, from ${from})`).join("; ")],
      ["Compiler", data.compiler],
    ]),
    build("p", { className: "note" }, "Select a node of the graph, a row of the tables or a line of the code: the other views show what belongs to it."),
  ];
}

/** @param {State} state @param {number} number */
function nodePart(state, number) {
  const node = state.data.nodes[number];
  const values = (/** @type {string[]} */ names, /** @type {(value: string) => number[]} */ nodesOf) =>
    chips(
      names.filter(Boolean).flatMap((value) => {
        const targets = nodesOf(value);
        return targets.length ? targets.map((target) => ({ text: `${value} · ${state.data.nodes[target].op ?? state.data.nodes[target].name}`, go: () => state.select({ node: target }) })) : [{ text: value }];
      }),
    );
  const outputs = node.outputs ?? [];
  const steps = state.stepsOfNode(number);
  const fate = node.fate ?? "";
  const reason = fate ? `${state.data.fates[fate]}${node.stage ? ` Pass: ${node.stage}.` : ""}` : steps.length ? "" : "No step of this program computes it; the other program does.";
  return [
    build("h2", { id: "node" }, node.name, " ", build("small", {}, node.op ?? "")),
    facts([
      ["No kernel", reason],
      ["Attributes", node.attributes],
      ["Types", (node.types ?? []).filter(Boolean).join("; ")],
      ["Reads", values(node.inputs ?? [], (value) => { const maker = state.producers.get(value); return maker === undefined ? [] : [maker]; })],
      ["Result to", values(outputs, (value) => state.consumers.get(value) ?? [])],
      ["Part of", node.parent === undefined ? undefined : chips([{ text: state.data.nodes[node.parent].name, go: () => state.select({ node: node.parent }) }])],
      ["Steps", steps.length > 1 ? chips(steps.map((step) => ({ text: `${step} · ${state.program.kernels[state.program.steps[step].kernel]?.name ?? ""}`, go: () => state.select({ node: number, step }), current: step === state.selection.step }))) : undefined],
    ]),
  ];
}

/** @param {State} state @param {number} number */
function stepPart(state, number) {
  const step = state.program.steps[number];
  const kernel = state.kernelOf(step.kernel);
  if (!kernel) return [build("h3", {}, `Step ${number}`), facts([["Decides", `${step.control}: which step is next`]])];
  const shared = state.stepsOfKernel(step.kernel);
  const buffers = (/** @type {number[]} */ list) => list.map((buffer) => { const [name, type, kind] = state.program.buffers[buffer]; return `${name}: ${type}${kind === "scratch" ? "" : ` (${kind})`}`; }).join("; ");
  const nodes = [
    ...step.nodes.map((node) => ({ text: nodeText(state, node), go: () => state.select({ node, step: number }), current: node === state.selection.node })),
    ...step.origin.map((text) => ({ text })),
  ];
  return [
    build("h3", {}, `Step ${number} of ${state.program.steps.length}`),
    build("h2", { id: "kernel" }, kernel.name, " ", build("small", {}, DEVICE_NAMES[step.device])),
    facts([
      ["Computes", chips(nodes)],
      ...lineRow(state, number),
      ["Code", codeChips(state, number)],
      ["On the CPU", step.reason],
      ["Runs", step.once ? "once, when the model is loaded" : undefined],
      ["Operations", step.flops === undefined ? undefined : step.flops.toLocaleString("en")],
      ["Bytes", `${step.least.toLocaleString("en")} at least${step.moved === undefined ? "" : `; ${step.moved.toLocaleString("en")} to and from registers`}`],
      ["Intensity", step.flops ? `${(step.flops / step.least).toFixed(2)} operations per byte` : undefined],
      ["Dispatch", step.dispatch && dispatchText(step.dispatch)],
      ["Estimates", step.dispatch && Object.entries(step.dispatch.bounds).map(([name, [bound, us]]) => `${name}: ${timeText(us / 1000)} (${bound})`).join("; ")],
      ["Time", timeOf(state, number, step)],
      ["Reads", buffers(step.reads)],
      ["Writes", buffers(step.writes)],
      ["Same code", shared.length > 1 ? chips(shared.map((other) => ({ text: `step ${other}`, go: () => state.select({ step: other }), current: other === number }))) : undefined],
    ]),
    ...schedulePart(kernel),
  ];
}

/** The nodes of the selected line. @param {State} state @param {number} number @returns {[string, Node][]} */
function lineRow(state, number) {
  const { line = -1, node: selected } = state.selection;
  const nodes = state.nodesOfLine(line);
  const chip = (/** @type {number} */ node) => ({ text: nodeText(state, node), go: () => state.select({ node, step: number }), current: node === selected });
  return nodes.length ? [[`Line ${line + 1}`, chips(nodes.map(chip))]] : [];
}

/** The operator and the name of a node. @param {State} state @param {number} node */
const nodeText = (state, node) => `${state.data.nodes[node].op ?? ""} ${state.data.nodes[node].name}`.trim();

/** Buttons that show the kernel of a step, and the line that calls it. @param {State} state @param {number} number */
function codeChips(state, number) {
  const step = state.program.steps[number];
  const lines = state.kernelOf(step.kernel)?.lines;
  const { calls } = step;
  const go = (/** @type {number} */ line) => () => state.select({ node: state.selection.node, step: number, line });
  const items = [
    ...(lines ? [{ text: `lines ${lines[0] + 1} to ${lines[1]}`, go: go(lines[0]) }] : []),
    ...(calls ? [{ text: `called on line ${calls[0] + 1}`, go: go(calls[0]) }] : []),
  ];
  return items.length ? chips(items) : undefined;
}

/** The size of a dispatch, and its bytes by level of memory. @param {import("./types.d.ts").Dispatch} dispatch */
function dispatchText({ workgroups, invocations, shared_bytes, registers, bytes }) {
  const shared = shared_bytes ? ` and ${byteText(shared_bytes)} of workgroup memory each` : "";
  const levels = `${byteText(bytes.registers)} in registers, ${byteText(bytes.workgroup)} in workgroup memory, ${byteText(bytes.storage)} in storage`;
  return `${countText(workgroups, "workgroup")}${shared}, ${countText(invocations, "invocation")} of about ${countText(registers, "register")}; ${levels}`;
}

/** The measured time of a step, beside what the machine could do. @param {State} state @param {number} number @param {Step} step */
function timeOf(state, number, step) {
  const times = state.measured;
  const ms = times?.steps[number];
  if (!times || ms === undefined) return "not measured yet";
  const parts = [timeText(ms), `${((100 * ms) / times.total).toFixed(1)} % of all steps`];
  if (step.flops && ms) parts.push(short(step.flops / ms * 1000, "operations/s"));
  if (ms) parts.push(short(step.least / ms * 1000, "B/s"));
  if (times.peak && ms) {
    const least = Math.max((step.flops ?? 0) / times.peak.flops, step.least / times.peak.bytes) * 1000;
    parts.push(`${((100 * least) / ms).toFixed(0)} % of the roofline`);
  }
  return parts.join(" · ");
}

/** The schedule of a kernel. @param {Code} kernel */
function schedulePart({ rule, trace = [], loops = "", tuning }) {
  if (rule === undefined) return [];
  const changes = tuning && `${JSON.stringify(tuning.changes)}, ${(1 / tuning.ratio).toFixed(2)}× as fast on ${tuning.platform}`;
  return [
    facts([["Schedule", `rule ${rule}, ${countText(trace.length, "step")}`], ["Tuned", changes]]),
    build("details", {}, build("summary", {}, "Loops before the schedule"), build("pre", { className: "loops", tabIndex: 0 }, loops)),
    build("details", { open: trace.length > 0 && trace.length <= 12 }, build("summary", {}, "Trace of the schedule"), build("ol", { className: "trace", tabIndex: 0 }, ...trace.map((text) => build("li", {}, text)))),
  ];
}
