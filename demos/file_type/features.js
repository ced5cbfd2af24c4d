// Turn a file into the input of Magika, and the scores of Magika into an answer.
//
// The twin of `_extract_features_from_seekable` and `_get_output_label_from_dl_label_and_score` of the Python package `magika`,
// in its mode HIGH_CONFIDENCE.

/**
 * @typedef {{ beg_size: number, end_size: number, block_size: number, padding_token: number, min_file_size_for_dl: number,
 *   medium_confidence_threshold: number, target_labels_space: string[], thresholds: Record<string, number>,
 *   overwrite_map: Record<string, string> }} Configuration
 * @typedef {{ description: string, mime_type: string | null, group: string | null, is_text: boolean }} Type
 */

const isSpace = (/** @type {number} */ byte) => byte === 32 || (byte >= 9 && byte <= 13); // what Python's bytes.strip() removes

/** Read so many bytes of a file from an offset. @param {Blob} file @param {number} from @param {number} to */
const read = async (file, from, to) => new Uint8Array(await file.slice(from, to).arrayBuffer());

/**
 * The first and the last bytes of a file without white space around them, each padded to its size.
 * @param {Blob} file
 * @param {Configuration} configuration
 * @returns {Promise<Int32Array | null>} null if the file has too few bytes for the model
 */
export async function extractFeatures(file, configuration) {
  const { beg_size, end_size, block_size, padding_token, min_file_size_for_dl } = configuration;
  if (file.size < min_file_size_for_dl) return null;
  const first = await read(file, 0, block_size);
  const last = await read(file, Math.max(0, file.size - block_size), file.size);
  let begin = 0;
  while (begin < first.length && isSpace(first[begin])) begin++;
  let end = last.length;
  while (end > 0 && isSpace(last[end - 1])) end--;
  const features = new Int32Array(beg_size + end_size).fill(padding_token);
  features.set(first.subarray(begin, begin + beg_size));
  const tail = last.subarray(Math.max(0, end - end_size), end);
  features.set(tail, features.length - tail.length);
  return features[min_file_size_for_dl - 1] === padding_token ? null : features;
}

/**
 * The name of the type that the scores tell. If the best score is under the threshold of its type, the answer is general.
 * @param {Float32Array} scores
 * @param {Configuration} configuration
 * @param {Record<string, Type>} types
 */
export function chooseType(scores, { target_labels_space, thresholds, overwrite_map, medium_confidence_threshold }, types) {
  const best = scores.indexOf(Math.max(...scores));
  const label = target_labels_space[best];
  const name = overwrite_map[label] ?? label;
  if (scores[best] >= (thresholds[label] ?? medium_confidence_threshold)) return name;
  return types[name].is_text ? "txt" : "unknown";
}

/** The name of the type of a file that has too few bytes for the model. @param {Blob} file */
export async function typeOfFewBytes(file) {
  if (!file.size) return "empty";
  try {
    new TextDecoder("utf-8", { fatal: true }).decode(await file.slice(0, 4096).arrayBuffer());
    return "txt";
  } catch {
    return "unknown";
  }
}
