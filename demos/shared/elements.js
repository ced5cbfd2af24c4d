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
