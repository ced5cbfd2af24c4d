// The libraries of ../language/libraries.js, for scripts that must not or cannot import them on demand.

import { Template } from "../language/jinja.js";
import { Tokenizer } from "../language/tokenizers.js";

/** @type {import("../language/libraries.js").Libraries} */
export const IMPORTED_LIBRARIES = { tokenizers: async () => ({ Tokenizer }), jinja: async () => ({ Template }) };
