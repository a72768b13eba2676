'use strict';

const assert = require('node:assert');
const fs = require('node:fs');
const path = require('node:path');
const test = require('node:test');
const vm = require('node:vm');

const ROOT = path.join(__dirname, '../../../..');
const views = vm.createContext({ atob });
for (const name of ['attention/show.js', 'experiments/analysis/page/maps.js']) {
  vm.runInContext(fs.readFileSync(path.join(ROOT, name), 'utf8'), views);
}
const plain = (value) => JSON.parse(JSON.stringify([...value]));

// Two layers of two heads; one query attends to two keys.
const weights = Float32Array.of(1, 0, 0.5, 0.5, 0.25, 0.75, 0.75, 0.25);
const map = { shape: [2, 2, 1, 2], weights };

test('stored weights', () => {
  assert.deepStrictEqual(
    plain(views.decodeWeights(btoa('\x00\x33\xff'))),
    plain(Float32Array.of(0, 0.2, 1)),
  );
});

test('row of a head, and mean and maximum of the heads', () => {
  assert.deepStrictEqual(plain(views.rowOfMap(map, 0, 1, 0)), [0.5, 0.5]);
  assert.deepStrictEqual(plain(views.rowOfMap(map, 1, 0, 0)), [0.25, 0.75]);
  assert.deepStrictEqual(plain(views.rowOfMap(map, 0, 'mean', 0)), [0.75, 0.25]);
  assert.deepStrictEqual(plain(views.rowOfMap(map, 1, 'max', 0)), [0.75, 0.75]);
});

test('rows that are not stored are computed', () => {
  const computed = { shape: [1, 2, 1, 2], weights: null, compute: (...given) => given };
  assert.deepStrictEqual(plain(views.rowOfMap(computed, 0, 1, 3)), [0, 1, 3]);
});

test('rows of hidden tokens and of the maximum do not sum to 1', () => {
  assert.equal(views.sumNote(true, 'mean') + views.sumNote(true, 0), '');
  assert.match(views.sumNote(true, 'max'), /can sum to more than 1/);
  assert.match(views.sumNote(false, 'max'), /no longer sum to 1/);
});

test('mean of rows', () => {
  assert.deepStrictEqual(plain(views.meanOfRows([[1, 0], [0.5, 0.5]], 2)), [0.75, 0.25]);
  assert.deepStrictEqual(plain(views.meanOfRows([], 2)), [0, 0]);
});

test('special tokens are hidden', () => {
  const labels = ['<bos>', 'a', '<eos>'];
  assert.deepStrictEqual(plain(views.placesOf(labels, ['<bos>', '<eos>'], false)), [1]);
  assert.deepStrictEqual(plain(views.placesOf(labels, ['<bos>', '<eos>'], true)), [0, 1, 2]);
});

test('white space at the ends is visible', () => {
  assert.equal(views.visibleText(' a b\n'), '␣a b⏎');
  assert.equal(views.visibleText(' '), '␣');
  assert.equal(views.visibleText(''), '∅');
});

test('largest weights', () => {
  const found = views.largestWeights(['the', 'cat', 'sat'], [0.126, 0.87, 0.004], [0, 1, 2]);
  assert.equal(found, 'cat 87\u00a0%, the 13\u00a0%');
  assert.equal(views.largestWeights(['the'], [0.004], [0]), 'the <1\u00a0%');
});

test('rows are sorted, empty values last', () => {
  const rows = [{ x: 2 }, { x: '' }, { x: 10 }];
  assert.deepStrictEqual(plain(views.sortedRows(rows, 'x', false)), [{ x: 2 }, { x: 10 }, { x: '' }]);
  assert.deepStrictEqual(plain(views.sortedRows(rows, 'x', true)), [{ x: 10 }, { x: 2 }, { x: '' }]);
});
