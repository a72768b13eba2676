'use strict';

const assert = require('node:assert');
const test = require('node:test');
const { engine, models, skip, plain, assertClose } = require('./engine.js');

const passes = Object.entries(models).map(([name, { model, expected }]) => {
  const loaded = engine.loadModel(model);
  const pass = engine.attendedBy(loaded, expected.source, expected.target);
  return { name, expected, pass };
});

test('logits equal those of JAX', { skip }, () => {
  for (const { name, expected, pass } of passes) {
    assertClose(pass.logits, expected.logits.flat(), 1e-3, name);
    assert.deepStrictEqual(plain(pass.logitsShape), [
      expected.logits.length,
      expected.logits[0].length,
    ]);
  }
});

test('weights equal those of JAX', { skip }, () => {
  for (const { name, expected, pass } of passes) {
    assert.deepStrictEqual(Object.keys(pass.maps).sort(), Object.keys(expected.maps).sort());
    for (const [kind, { weights, ...others }] of Object.entries(expected.maps)) {
      const { weights: found, ...rest } = pass.maps[kind];
      assertClose(found, weights.flat(3), 1e-4, `${kind} of ${name}`);
      assert.deepStrictEqual(plain(rest), others);
    }
  }
});

test('labels and predicted tokens', { skip }, () => {
  for (const { expected, pass } of passes) {
    assert.deepStrictEqual(plain(pass.stacks), expected.stacks);
    assert.deepStrictEqual(plain(pass.predicted), expected.predicted);
  }
});

test('movement of the vectors of each layer', { skip }, () => {
  for (const { name, expected, pass } of passes) {
    for (const [stack, rows] of Object.entries(expected.movement)) {
      assertClose(pass.movement[stack].flat(), rows.flat(), 1e-4, `${stack} of ${name}`);
    }
  }
});
