// The errors that the runtime throws. Each has a message for people and a stable `code` for programs.

export class WebmlcError extends Error {
  code = "internal";

  /** @param {string} message @param {ErrorOptions} [options] */
  constructor(message, options) {
    super(message, options);
    this.name = new.target.name;
  }
}

/** A run-time input has the wrong name, dtype or shape. */
export class InputError extends WebmlcError {
  code = "input";
}

/** A package file is missing, malformed or corrupted (its hash differs). */
export class PackageError extends WebmlcError {
  code = "package";
}

/** There is no usable GPU adapter, or it lacks a limit or feature that the package needs. */
export class AdapterError extends WebmlcError {
  code = "adapter";
}

/** The GPU device was lost: a reset, a new driver or power saving. `model.restore()` opens another one. */
export class DeviceLostError extends WebmlcError {
  code = "device-lost";
}

/** The browser, the page's policy or Node lacks or forbids what the runtime needs: WebAssembly, SIMD, workers. */
export class HostError extends WebmlcError {
  code = "host";
}

/** A model, session or tensor was disposed of before the call or during it. */
export class DisposedError extends WebmlcError {
  code = "disposed";
}

/** An invariant of the compiler or the runtime does not hold. This is a bug in webmlc. */
export class InternalError extends WebmlcError {}

/** The error for a feature that this host lacks. @param {string} feature */
export function missingFeature(feature) {
  return new HostError(`this host has no ${feature}: use a current browser, or load with device: "webgpu"`);
}

const CLASSES = { InputError, PackageError, AdapterError, DeviceLostError, HostError, DisposedError, InternalError };

/** The error of a model that was disposed of. */
export function modelDisposed() {
  return new DisposedError("this model was disposed of; load it again");
}

/** The code of an error of the runtime, or of another copy of it; "" for any other error. @param {any} error @returns {string} */
export function codeOf(error) {
  return typeof error?.code === "string" && error.name in CLASSES ? error.code : "";
}

/**
 * Turn an error into plain data. Structured cloning between workers loses the class of an error.
 * @param {any} error
 * @returns {{ name: string, message: string }}
 */
export function toData(error) {
  return typeof error?.message === "string" ? { name: error.name, message: error.message } : { name: "", message: String(error) };
}

/**
 * Turn the data of `toData` back into an error.
 * @param {{ name: string, message: string }} data
 * @returns {WebmlcError}
 */
export function fromData({ name, message }) {
  const type = CLASSES[/** @type {keyof typeof CLASSES} */ (name)];
  return type ? new type(message) : new InternalError(name ? `${name}: ${message}` : message);
}
