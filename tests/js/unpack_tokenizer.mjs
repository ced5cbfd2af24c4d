// Read tokenisers in the form of a package.
//   in:  the paths of files
//   out: the contents of each tokenizer.json, as JSON

import { readFile } from "node:fs/promises";
import { unpackTokenizer } from "../../runtime_js/language/tokenizer_file.js";

const contents = [];
for (const path of process.argv.slice(2)) contents.push(unpackTokenizer(new Uint8Array(await readFile(path)).buffer));
process.stdout.write(JSON.stringify(contents));
