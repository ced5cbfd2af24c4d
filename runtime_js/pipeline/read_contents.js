// Read the pictures and sounds that pipelines take as addresses, files or responses.

import { InputError } from "../errors.js";
import { kindOf } from "../kinds.js";

/** The contents of an address, a file or a response; null for other values. @param {any} source @returns {Promise<Blob | null>} */
export async function contentsOf(source) {
  switch (kindOf(source)) {
    case "String":
    case "URL":
      return contentsOf(await fetch(String(source)));
    case "Response":
      if (!source.ok) throw new InputError(`${source.url}: ${source.status} ${source.statusText}`);
      return source.blob();
    case "Blob":
    case "File":
      return source;
    default:
      return null;
  }
}
