// Tokenise texts with the library of packages.
//
//   in:  { tokenizer, texts: [string] } as JSON: the contents of tokenizer.json
//   out: [[number]] as JSON: the tokens of each text

import { text } from "node:stream/consumers";
import { Tokenizer } from "../../runtime_js/language/tokenizers.js";

const { tokenizer, texts } = JSON.parse(await text(process.stdin));
const encoder = new Tokenizer(tokenizer, {});
console.log(JSON.stringify(texts.map((/** @type {string} */ one) => encoder.encode(one).ids)));
