// The libraries of Hugging Face, which tests/js/bundle_libraries.mjs writes. They are imported if a package has a tokenizer.

/** @typedef {{ tokenizers: () => Promise<{ Tokenizer: any }>, jinja: () => Promise<{ Template: any }> }} Libraries */

/** @type {Libraries} */
export const LIBRARIES = { tokenizers: () => import("./tokenizers.js"), jinja: () => import("./jinja.js") };
