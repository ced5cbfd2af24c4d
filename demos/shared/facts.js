// The table of a demo: device, time and download, of webmlc and of ONNX Runtime Web.

import { create } from "./elements.js";
import { showBytes } from "./figures.js";

const DEVICES = { auto: "Automatic", wasm: "CPU", webgpu: "GPU" };
const COLUMNS = /** @type {const} */ (["device", "time", "download"]);

export class Facts {
  /** @type {() => Promise<void>} */
  onCompare = async () => {};
  #rows = ["webmlc", "ONNX Runtime Web"].map((name) => {
    const cells = COLUMNS.map((column) => create("td", column, "–"));
    const row = create("tr", "", create("th", "", name), ...cells);
    row.firstElementChild?.setAttribute("scope", "row");
    return { row, cells };
  });
  #button = /** @type {HTMLButtonElement} */ (create("button", "", "Compare"));
  #progress = /** @type {HTMLProgressElement} */ (create("progress"));
  #status = create("p", "status");
  #reasons = create("p", "reasons");

  /** @param {HTMLElement} place @param {string} device @param {string} unit */
  constructor(place, device, unit) {
    place.setAttribute("aria-label", "How it runs");
    const headings = ["", "Device", `Time of ${unit}`, "Download"].map((text) => create("th", "", text));
    for (const heading of headings) heading.setAttribute("scope", "col");
    const table = create("table", "", create("thead", "", create("tr", "", ...headings)), create("tbody", "", ...this.#rows.map(({ row }) => row)));
    const choice = /** @type {HTMLSelectElement} */ (create("select"));
    for (const [name, label] of Object.entries(DEVICES)) choice.append(new Option(label, name, false, name === device));
    choice.addEventListener("change", () => {
      const query = new URLSearchParams(location.search);
      query.set("device", choice.value);
      location.search = query.toString();
    });
    this.#button.type = "button";
    this.#button.disabled = true;
    this.#button.title = "Loads ONNX Runtime Web and the original model, and measures both engines";
    this.#button.addEventListener("click", () => void this.#compare());
    this.#progress.setAttribute("aria-label", "Download");
    this.#status.setAttribute("role", "status");
    const tools = create("div", "tools", create("label", "", "Runs on ", choice), this.#button);
    place.append(table, this.#progress, tools, this.#status, this.#reasons);
    this.#button.textContent = "Compare with ONNX Runtime Web";
    this.say("Loading the model…");
  }

  /** @param {number} index @param {Partial<Record<"device" | "time" | "download", string>>} texts */
  showRow(index, texts) {
    COLUMNS.forEach((column, place) => {
      const text = texts[column];
      if (text !== undefined) this.#rows[index].cells[place].textContent = text;
    });
  }

  /** @param {number} loaded @param {number} total */
  showProgress(loaded, total) {
    Object.assign(this.#progress, { value: loaded, max: total });
    this.say(`Loading the model: ${showBytes(loaded)} of ${showBytes(total)}`);
  }

  /** @param {string} what @param {string} reason @param {string} offline */
  showReasons(what, reason, offline) {
    this.#progress.hidden = true;
    this.say("Ready. Everything runs on this device.");
    this.#reasons.textContent = `${what}: ${reason}. Works offline: ${offline}.`;
  }

  allowComparison() {
    this.#button.disabled = false;
  }

  /** @param {string} text */
  say(text) {
    this.#status.className = "status";
    this.#status.textContent = text;
  }

  /** @param {unknown} error */
  fail(error) {
    this.#progress.hidden = true;
    this.#status.className = "status problem";
    this.#status.textContent = error instanceof Error ? error.message : String(error);
  }

  async #compare() {
    this.#button.disabled = true;
    this.say("Loading ONNX Runtime Web and the original model…");
    try {
      await this.onCompare();
    } catch (error) {
      this.fail(error);
    } finally {
      this.#button.disabled = false;
    }
  }
}
