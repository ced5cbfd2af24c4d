// Tell kinds of values apart, whichever realm made them.
//
// A frame, `node:vm` and each test file of Jest have classes of their own, so that `instanceof` is false for their values. The name of
// a built-in class is the same everywhere.

/** The name of the built-in class of a value, such as "URL" or "ImageBitmap". @param {unknown} value */
export function kindOf(value) {
  return Object.prototype.toString.call(value).slice(8, -1);
}

/** The name of the class of an array of bytes or numbers, such as "Float32Array"; "" for any other value. @param {unknown} value */
export function arrayKind(value) {
  return ArrayBuffer.isView(value) ? kindOf(value) : "";
}

/** The kind of a value, in the words of an error. @param {any} value */
export function described(value) {
  const name = value?.constructor?.name ?? String(value);
  return /.Array$/.test(name) && !ArrayBuffer.isView(value) ? `a Proxy of ${name}` : name;
}
