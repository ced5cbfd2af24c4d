// Read texts as Markdown.
//   in (stdin):   [text] as JSON
//   out (stdout): [tree] as JSON

import { text } from "node:stream/consumers";
import { readMarkdown } from "../../runtime_js/language/markdown.js";

process.stdout.write(JSON.stringify(JSON.parse(await text(process.stdin)).map(readMarkdown)));
