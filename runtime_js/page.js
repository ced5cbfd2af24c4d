// The parts that the pages of packages share: finding and adding elements, and the choice of a device in the page's address.

/** @param {string} id @returns {any} */
export const element = (id) => document.getElementById(id);

/** Create an element. @param {string} tag @param {string} [text] */
export function create(tag, text = "") {
  const node = document.createElement(tag);
  node.textContent = text;
  return node;
}

/** Add a fact about the model. @param {string} term @param {string} text */
export function fact(term, text) {
  element("facts").append(create("dt", term), create("dd", text));
}

/** Add an item to a list. @param {string} list @param {string} text */
export function item(list, text) {
  const li = create("li");
  li.append(create("code", text));
  element(list).append(li);
}

/**
 * Show the page, because its scripts run, and read the options of `load` from its address: `?device=wasm|webgpu&threads=2`.
 * Another choice of the device reloads the page.
 * @returns {{ device: "auto" | "wasm" | "webgpu", threads?: number }}
 */
export function openPage() {
  element("notice").remove();
  element("page").hidden = false;
  const query = new URLSearchParams(location.search);
  const device = /** @type {"auto"} */ (query.get("device") ?? "auto");
  const threads = query.get("threads");
  for (const name of ["auto", "wasm", "webgpu"]) element("device").append(new Option(name, name, false, name === device));
  element("device").addEventListener("change", () => {
    query.set("device", element("device").value);
    location.search = query.toString();
  });
  return { device, threads: threads === null ? undefined : Number(threads) };
}

/** Show an error as the status of the page. @param {unknown} error */
export function showError(error) {
  element("status").textContent = String(error);
  element("status").className = "error";
}

/** Say that the model did not load. @param {unknown} error */
export function showFailure(error) {
  element("name").textContent = document.title = "The model did not load";
  element("progress").hidden = true;
  showError(error);
}
