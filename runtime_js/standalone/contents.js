// The contents of a single file beside the runtime. `webmlc build --single-file` replaces both values.

/** The files of the package: an archive in base64 (see webmlc/package/single_file.py). */
export const ARCHIVE = "";

/** The script of a worker. */
export const WORKER = "";
