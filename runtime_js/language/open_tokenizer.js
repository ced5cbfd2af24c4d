// Make the tokenizer of a package.
//
//   in:  the library's class, and the file of the package
//   out: a tokenizer of the library, and the contents of tokenizer.json without what its merges imply
//
// The library stores the text of each token and merge several times. So its model gets only the tokens that no merge makes, and asks
// `MergedTokens` for the others.

import { unpackTokenizer } from "./tokenizer_file.js";

/** @import { MergedTokens } from "./merged_tokens.js" */

/** The tokens by text: those of the map itself, such as added tokens, then those that merges make. @extends {Map<string, number>} */
class TokenMap extends Map {
  /** @param {Map<string, number>} tokens @param {MergedTokens} merged */
  constructor(tokens, merged) {
    super(tokens);
    this.merged = merged;
  }

  /** @param {string} text */
  get(text) {
    return super.get(text) ?? this.merged.tokenOf(text);
  }

  /** @param {string} text */
  has(text) {
    return this.get(text) !== undefined;
  }
}

/**
 * @param {any} Tokenizer
 * @param {ArrayBuffer} data
 * @returns {{ tokenizer: any, contents: any }}
 */
export function openTokenizer(Tokenizer, data) {
  const { contents, merged } = unpackTokenizer(data);
  const tokenizer = new Tokenizer(contents, {});
  if (!merged) return { tokenizer, contents };
  const { model } = tokenizer;
  model.unk_token_id ??= merged.tokenOf(model.unk_token ?? "");
  model.tokens_to_ids = new TokenMap(model.tokens_to_ids, merged);
  model.vocab = new Proxy(model.vocab, { get: (texts, token) => texts[token] ?? merged.textOf(Number(token)) });
  // The library asks for the rank of a merge by the JSON of both texts.
  model.bpe_ranks = { get: (/** @type {string} */ merge) => merged.rankOf(.../** @type {[string, string]} */ (JSON.parse(merge))) };
  return { tokenizer, contents };
}
