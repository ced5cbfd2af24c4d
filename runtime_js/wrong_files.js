// Say what a file is that is none of a package, and what to do. The twin of webmlc/frontend/file_kinds.py, for what servers send.
//
//   in:  the first bytes of a file, a manifest, or the address that a caller wrote
//   out: sentences for an error, or ""

const HEAD_BYTES = 512; // enough for a pointer of Git LFS, and for how a page begins
const MODEL_FILE = /\.(onnx|gguf|tflite|keras|h5|pt2?|pth|bin|safetensors|pb|ort|task|zip)$/i;
const HUB_NAME = /^[\w-][\w.-]*\/[\w-][\w.-]*$/; // of a model of the Hugging Face hub
const COPY_PACKAGE = "Copy the folder that `webmlc build` wrote to where the page is served, and pass its URL to `load`";

/** How wrong files begin, what they are, and what to do. @type {[RegExp, string, string][]} */
const WRONG_FILES = [
  [
    /^\s*(<\?xml[^>]*>\s*)?(<!-{2}[^]*?-->\s*)*<(!doctype html|html|head|body|script)/i,
    "an HTML page, which the server sent instead of the file, as servers of single-page apps do for a file that they lack",
    COPY_PACKAGE,
  ],
  [/^<\?xml/, "an XML text, which a server sent instead of the file", COPY_PACKAGE],
  [/^version https:\/\/git-lfs/, "a Git LFS pointer, which stands for a file elsewhere", "Fetch the file itself: git lfs pull"],
  [/^$/, "an empty file", COPY_PACKAGE],
];

/** A copy of the first bytes of a file. @param {Uint8Array} data */
export function headOf(data) {
  return data.slice(0, HEAD_BYTES);
}

/**
 * The kind of a file that is none of a package; "" if its first bytes do not say.
 * @param {Uint8Array} head
 * @param {string} [address]  of the package
 */
export function wrongFile(head, address = "") {
  const text = new TextDecoder().decode(head);
  const [, kind, advice] = WRONG_FILES.find(([pattern]) => pattern.test(text)) ?? [];
  return kind ? `this is ${kind}. ${wrongAddress(address) || advice}` : "";
}

/** The kind of JSON that is no manifest of a package. @param {any} value */
export function wrongManifest(value) {
  const isOfApp = value?.start_url ?? value?.icons ?? value?.short_name;
  const answer = value?.error ?? value?.message;
  const kind = isOfApp ? "the manifest of a web app" : answer && `the answer of a server: ${JSON.stringify(answer)}`;
  return kind ? `this is ${kind}. ${COPY_PACKAGE}` : "not a webmlc package";
}

/** The likely cause of an address without a package, and the remedy; "" if nothing is special about it. @param {string} address */
function wrongAddress(address) {
  const [path] = address.split(/[?#]/);
  if (/^https?:\/\/(www\.)?(huggingface\.co|hf\.co)\//.test(path) || (HUB_NAME.test(path) && !MODEL_FILE.test(path))) {
    return "If you mean a model of the Hugging Face hub: export it to a file, and build a package of it with `webmlc build`";
  }
  if (MODEL_FILE.test(path)) return "Pages load packages, not models: build one with `webmlc build`, and pass the URL of its folder";
  if (/\/manifest\.json$/.test(path)) return "Pass the URL of the package's folder, without manifest.json";
  if (/\.m?js$/.test(path)) return "A package in a single file is a script. Take `load` from it, and call it without a URL";
  return "";
}

/** The remedy if there is nothing at an address. @param {string} address */
export function missingPackage(address) {
  return wrongAddress(address) || `is the package's URL right? ${COPY_PACKAGE}`;
}
