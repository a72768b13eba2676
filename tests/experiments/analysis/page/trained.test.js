'use strict';

const assert = require('node:assert');
const test = require('node:test');
const { engine, models, greedy } = require('./engine.js');

const skip = models.trained ? false : 'needs a trained model';

test('greedy translations equal those of JAX', { skip }, (context) => {
  const { model: data, pairs } = models.trained;
  const model = engine.loadModel(data);
  const seconds = pairs.map(({ source, target }) => {
    const start = performance.now();
    assert.deepStrictEqual(greedy(model, source, 1000), target);
    return (performance.now() - start) / 1000;
  });
  const slowest = Math.max(...seconds);
  context.diagnostic(`${pairs.length} equal translations, the slowest in ${slowest} s`);
});
