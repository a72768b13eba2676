'use strict';

// Loads the scripts of the model as the page does: they define functions in one scope.

const fs = require('node:fs');
const path = require('node:path');
const vm = require('node:vm');

const engine = globalThis;
const FOLDER = path.join(__dirname, '../../../../experiments/analysis/page');
for (const name of ['arrays.js', 'model.js', 'calculation.js', 'decode.js', 'tokens.js']) {
  vm.runInThisContext(fs.readFileSync(path.join(FOLDER, name), 'utf8'), { filename: name });
}

const written = process.env.PAGE_MODELS; // by test_model_data.py
const models = written ? JSON.parse(fs.readFileSync(written, 'utf8')) : {};
const skip = written ? false : 'test_model_data.py runs this test with models';

/** Return a copy with plain arrays in place of Float32Arrays. */
const plain = (value) => JSON.parse(JSON.stringify(value));

/** Return the ids of greedy decoding. */
const greedy = (model, ids, maxTokens) => engine.beam(model, ids, 1, maxTokens)[0].ids;

/** Fail unless all numbers of two arrays differ by less than a tolerance. */
function assertClose(found, expected, tolerance, name = 'numbers') {
  if (found.length !== expected.length) {
    throw new Error(`${name}: ${found.length} numbers, expected ${expected.length}`);
  }
  const worst = expected.reduce((most, number, i) => {
    const difference = Math.abs(found[i] - number);
    return difference <= most ? most : difference; // NaN too
  }, 0);
  if (!(worst < tolerance)) throw new Error(`${name}: off by ${worst}, allowed ${tolerance}`);
}

module.exports = { engine, models, skip, plain, greedy, assertClose };
