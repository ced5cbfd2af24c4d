// Find and create elements.

/** @param {string} id @returns {any} */
export const element = (id) => document.getElementById(id);

/** Create an element with a class and children. @param {string} tag @param {string} name @param {(Node | string)[]} children */
export function create(tag, name = "", ...children) {
  const node = document.createElement(tag);
  if (name) node.className = name;
  node.append(...children);
  return node;
}

/** Create a bar that shows a share from 0 to 1. @param {string} label @param {number} share */
export function createBar(label, share) {
  const bar = /** @type {HTMLProgressElement} */ (create("progress", "bar"));
  bar.value = Math.min(1, Math.max(0, share));
  bar.setAttribute("role", "meter");
  bar.setAttribute("aria-label", label);
  bar.setAttribute("aria-valuenow", share.toFixed(3));
  bar.setAttribute("aria-valuemin", "0");
  bar.setAttribute("aria-valuemax", "1");
  return bar;
}
