// Split a text into passages, and find those whose embeddings are nearest to that of a query.

const LONGEST = 400; // characters of a passage; a model reads about 256 tokens
const MOST = 2000; // passages, which a laptop reads in about a minute

/**
 * Lines and paragraphs are passages. Long ones are split after sentences.
 * @param {string} text
 */
export function splitPassages(text) {
  const paragraphs = text.split(/\n\s*\n|\n(?=\S)/).map((part) => part.replace(/\s+/g, " ").trim());
  return paragraphs.filter(Boolean).flatMap(splitLong).slice(0, MOST);
}

/** @param {string} paragraph */
function splitLong(paragraph) {
  if (paragraph.length <= LONGEST) return [paragraph];
  const passages = [""];
  for (const sentence of paragraph.match(/.+?(?:[.!?…]["”»)]*\s+|$)/g) ?? []) {
    if (passages[passages.length - 1].length + sentence.length > LONGEST) passages.push("");
    passages[passages.length - 1] += sentence;
  }
  return passages.map((passage) => passage.trim()).filter(Boolean);
}

/**
 * The passages with the highest cosines. All embeddings have the length 1.
 * @param {Float32Array} query
 * @param {Float32Array[]} embeddings
 * @param {number} count
 */
export function nearest(query, embeddings, count) {
  const scores = embeddings.map((embedding) => embedding.reduce((sum, value, i) => sum + value * query[i], 0));
  const order = [...scores.keys()].sort((a, b) => scores[b] - scores[a]).slice(0, count);
  return order.map((index) => ({ index, score: scores[index] }));
}
