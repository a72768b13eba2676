'use strict';

// Text as a person types it, and the text of tokens.

const EDGES = /^([^\p{L}\p{N}_]*)(.*[\p{L}\p{N}_]\p{M}*)?(.*)$/su; // signs, a word, signs
const BLANKS = '[\\p{Z}\\t-\\r\\x1c-\\x1f\\x85]+'; // as in Python
const SPACES = new RegExp(BLANKS, 'u');
const ENDS = new RegExp(`^${BLANKS}|${BLANKS}$`, 'gu');

/**
 * Read a source, or the prompt of a decoder alone.
 *
 * Returns its ids, with the special tokens, their labels, the places of unknown words, and in
 * `problem` a sentence if the model cannot read the text.
 */
function readText(model, text) {
  const { source, begin, end } = model;
  const [before, after] = model.encoder ? [[], [end]] : [begin, []];
  const parts = model.decoder ? [text] : text.split(/_+/); // with a gap between
  const words = parts.flatMap((part, number) => [
    ...(number ? ['_'] : []),
    ...SPLIT[source.kind](source, part),
  ]);
  const problem = problemOf(model, text, words);
  if (problem) return { ids: [], labels: [], unknown: [], problem };
  const known = idsOf(source);
  const ids = words.map((word) => known.get(word) ?? known.get(source.placeholder));
  const label = (id) => source.labels[id];
  const typed = source.kind === 'word' ? words : ids.map(label);
  return {
    ids: [...before, ...ids, ...after],
    labels: [...before.map(label), ...typed, ...after.map(label)],
    unknown: words.flatMap((word, at) => (known.has(word) ? [] : [before.length + at])),
    problem,
  };
}

/** Return a sentence if a model cannot read a text, and "" if it can. */
function problemOf(model, text, words) {
  const { source } = model;
  const special = model.encoder ? 1 : model.begin.length;
  const { max_length: longest } = model.source_embedding || model.target_embedding;
  const room = (longest ?? Infinity) - special;
  const unknown = words.find((word) => !idsOf(source).has(word));
  if (source.problem) return source.problem;
  if (words.length === 0 && (model.encoder || special === 0)) {
    return text.trim() ? 'The text has no word.' : 'The text is empty.';
  }
  if (words.length > room) {
    return `The text has ${words.length} tokens, and the model reads at most ${room}.`;
  }
  if (source.kind === 'character' && unknown !== undefined) {
    return `The character ‘${unknown}’ is not in the text that was learned.`;
  }
  return '';
}

/** Return the id of each token but the special ones, which cannot be typed. */
function idsOf(side) {
  const tokens = side.pieces || side.labels;
  side.ids ??= new Map(tokens.map((token, id) => [token, id]).slice(side.special));
  return side.ids;
}

const SPLIT = { word: splitWords, character: (_, text) => [...text], subword: splitSubwords };

/** Split a text into words in the case of the vocabulary, and signs, as `read_sentence` in Python does. */
function splitWords(source, text) {
  const known = idsOf(source);
  source.small ??= new Map([...known.keys()].reverse().map((word) => [word.toLowerCase(), word]));
  const inSmallLetters = (word) => source.small.get(word.toLowerCase());
  const respell = (word) => (known.has(word) ? word : (inSmallLetters(word) ?? word));
  const spaced = source.apostrophes ? text.replaceAll("'", "' ") : text;
  return spaced.split(SPACES).filter(Boolean).flatMap((typed) => {
    if (known.has(respell(typed))) return [respell(typed)];
    const [, before, word, after] = typed.match(EDGES);
    return [...signs(known, before), ...(word ? [respell(word)] : []), ...signs(known, after)];
  });
}

/** Return the known signs of a text, and what is neither punctuation nor invisible. */
function signs(known, text) {
  const spaced = (sign) => (known.has(sign) ? ` ${sign} ` : sign.replace(/\p{P}/u, ' '));
  const runs = [...text].map(spaced).join('').split(' ');
  return runs.filter((run) => /[^\p{Cc}\p{Cf}]/u.test(run));
}

/** Merge adjacent parts, those of the most frequent subword first; what is left becomes bytes. */
function splitSubwords(source, text) {
  const known = idsOf(source);
  const inner = text.replace(ENDS, '');
  const parts = inner ? [...`▁${inner.replaceAll(' ', '▁')}`] : [];
  const rank = (at) => known.get(parts[at] + parts[at + 1]) ?? Infinity; // ids are ranks
  for (;;) {
    let best = 0;
    for (let at = 1; at < parts.length - 1; at++) if (rank(at) < rank(best)) best = at;
    if (rank(best) === Infinity) break;
    parts.splice(best, 2, parts[best] + parts[best + 1]);
  }
  const bytes = (part) => [...new TextEncoder().encode(part)].map(byteToken);
  return parts.flatMap((part) => (known.has(part) ? [part] : bytes(part)));
}

function byteToken(byte) {
  return `<0x${byte.toString(16).toUpperCase().padStart(2, '0')}>`;
}

/** Return the text of subwords, some of which are bytes. */
function joinSubwords(pieces) {
  const bytes = pieces.flatMap((piece) => {
    const [, byte] = piece.match(/^<0x(..)>$/) || [];
    return byte ? [parseInt(byte, 16)] : [...new TextEncoder().encode(piece)];
  });
  return new TextDecoder().decode(Uint8Array.from(bytes)).replaceAll('▁', ' ').replace(' ', '');
}

/** Return the text of ids, without special tokens; `copies` replace the tokens at their places. */
function writeText(model, ids, copies = new Map()) {
  const { pieces, labels, special, kind, apostrophes } = model.target;
  const word = (id, place) => copies.get(place) ?? (pieces || labels)[id];
  const words = ids.flatMap((id, place) => (id < special ? [] : [word(id, place)]));
  copies.forEach((copy, place) => place < ids.length || words.push(copy));
  if (kind === 'subword') return joinSubwords(words);
  const text = words.join(kind === 'word' ? ' ' : '');
  return apostrophes ? text.replaceAll("' ", "'") : text;
}

/**
 * Align unknown words of a source with target tokens, one to one, the largest weight first.
 *
 * A target token whose largest weight is on another word translates that one, and is kept. Returns
 * the word of each target place that is a copy; words without such a token follow the last place.
 * The weights are means of all heads and layers of the cross-attention of a pass.
 */
function copiedWords(model, pass, { labels, unknown }) {
  const copies = new Map();
  const rest = new Set(unknown);
  const [layers, heads, queries, keys] = pass.maps.cross.shape;
  const pairs = [];
  for (let query = 0; query < queries; query++) {
    if (pass.predicted[query] === model.target.labels[model.end]) continue;
    const weights = new Float32Array(keys - 1); // without the end
    for (let at = 0; at < layers * heads; at++) {
      const one = rowOfWeights(pass, 'cross', Math.floor(at / heads), at % heads, query);
      weights.forEach((_, key) => (weights[key] += one[key]));
    }
    const largest = Math.max(...weights);
    if (!unknown.some((key) => weights[key] === largest)) continue;
    unknown.forEach((key) => pairs.push([weights[key], query, key]));
  }
  for (const [, query, key] of pairs.sort((a, b) => b[0] - a[0])) {
    if (!copies.has(query) && rest.delete(key)) copies.set(query, labels[key]);
  }
  [...rest].forEach((key, at) => copies.set(queries + at, labels[key]));
  return copies;
}
