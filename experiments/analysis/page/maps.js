'use strict';

// Weights of maps, and the text that describes them. Nothing here needs a browser.

/** Decode base64 of bytes; the byte 255 is the weight 1. */
function decodeWeights(base64) {
  return Float32Array.from(atob(base64), (character) => character.charCodeAt(0) / 255);
}

/** Return a sentence if the weights of a row that are shown do not sum to 1. */
function sumNote(showsSpecial, head) {
  if (!showsSpecial) return 'Special tokens are hidden: rows no longer sum to 1.';
  return head === 'max' ? 'Rows of the maximum of the heads can sum to more than 1.' : '';
}

/** Return the mean of rows. */
function meanOfRows(rows, size) {
  const mean = new Float32Array(size);
  for (const row of rows) row.forEach((weight, key) => (mean[key] += weight / rows.length));
  return mean;
}

/** Return the places of labels, without those of special tokens unless they are shown. */
function placesOf(labels, special, showsSpecial) {
  const places = [...labels.keys()];
  return showsSpecial ? places : places.filter((place) => !special.includes(labels[place]));
}

function percent(weight) {
  if (weight > 0 && weight < 0.005) return '<1\u00a0%';
  return `${Math.round(100 * weight)}\u00a0%`;
}

/** List the labels with the largest weights, "the 62 %, girl 21 %". */
function largestWeights(labels, weights, places, count = 5) {
  const order = [...places].sort((a, b) => weights[b] - weights[a]).slice(0, count);
  const shown = order.filter((place, rank) => rank === 0 || weights[place] >= 0.01);
  return shown
    .map((place) => `${visibleText(labels[place])} ${percent(weights[place])}`)
    .join(', ');
}

/** Sort rows by a column; empty values come last. */
function sortedRows(rows, column, descending) {
  const known = rows.filter((row) => row[column] !== '');
  const sign = descending ? -1 : 1;
  const compare = (a, b) => (a < b ? -sign : a > b ? sign : 0);
  known.sort((a, b) => compare(a[column], b[column]));
  return [...known, ...rows.filter((row) => row[column] === '')];
}
