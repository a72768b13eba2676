'use strict';

const assert = require('node:assert');
const test = require('node:test');
const { engine, models, skip, plain, greedy } = require('./engine.js');

const decoders = Object.values(models).filter(({ model }) => model.decoder);
const loaded = decoders.map(({ model, expected }) => {
  const [isAlone, { source, target }] = [!model.encoder, expected];
  return { model: engine.loadModel(model), ids: isAlone ? target : source, isAlone };
});

test('largest numbers, of equal ones the first', () => {
  assert.deepStrictEqual(plain(engine.largest([1, 3, 2, 3, 0], 3)), [1, 3, 2]);
  assert.deepStrictEqual(plain(engine.largest([2], 3)), [0]);
});

test('greedy decoding with a cache equals the full pass', { skip }, () => {
  for (const { model, ids, isAlone } of loaded) {
    const found = greedy(model, ids, 6);
    assert.ok(found.length > 0 && found.length <= 6);
    const pass = isAlone
      ? engine.attendedBy(model, [], [...ids, ...found])
      : engine.attendedBy(model, ids, found);
    const size = pass.logitsShape[1];
    found.forEach((id, step) => {
      const at = isAlone ? ids.length - 1 + step : step;
      const logits = pass.logits.slice(at * size, (at + 1) * size);
      assert.deepStrictEqual(plain(engine.largest(logits, 1)), [id]);
    });
  }
});

test('scores of beam search are sums of log-probabilities', { skip }, () => {
  for (const { model, ids, isAlone } of loaded) {
    model.length_penalty = 1;
    const found = engine.beam(model, ids, 3, 4);
    assert.equal(found.length, 3);
    for (const { ids: written, score, logProbs, alternatives } of found) {
      const sum = logProbs.reduce((a, b) => a + b);
      assert.ok(Math.abs(score - sum / ((5 + written.length) / 6)) < 1e-6);
      assert.equal(alternatives.length, written.length);
      const pass = isAlone
        ? engine.attendedBy(model, [], [...ids, ...written])
        : engine.attendedBy(model, ids, written);
      const size = pass.logitsShape[1];
      written.forEach((id, step) => {
        const at = isAlone ? ids.length - 1 + step : step;
        const logProb = engine.logSoftmax(pass.logits.slice(at * size, (at + 1) * size))[id];
        assert.ok(Math.abs(logProb - logProbs[step]) < 1e-4);
      });
    }
    const scores = found.map(({ score }) => score);
    assert.deepStrictEqual(plain(scores), [...plain(scores)].sort((a, b) => b - a));
  }
});

test('a text ends at the longest length of the model', { skip }, () => {
  for (const { model, ids, isAlone } of loaded) {
    model.end = -1;
    const longest = model.target_embedding.max_length;
    assert.equal(greedy(model, ids, 1000).length, longest - (isAlone ? ids.length : 0));
  }
});

test('temperature, top-k and top-p', () => {
  const logits = Float32Array.of(3, 2, 1.5, 1, 0, -2); // as on page 11 of the tutorial
  const kept = (settings) =>
    [...engine.keptProbabilities(logits, { temperature: 1, topK: Infinity, topP: 1, ...settings })].map(
      (each) => Math.round(100 * each) / 100,
    );
  assert.deepStrictEqual(kept({}), [0.56, 0.21, 0.13, 0.08, 0.03, 0]);
  assert.deepStrictEqual(kept({ temperature: 0.5 }), [0.83, 0.11, 0.04, 0.02, 0, 0]);
  assert.deepStrictEqual(kept({ topK: 2 }), [0.73, 0.27, 0, 0, 0, 0]);
  assert.deepStrictEqual(kept({ topP: 0.8 }), [0.63, 0.23, 0.14, 0, 0, 0]);
});

test('sampling of the most probable token is greedy decoding', { skip }, () => {
  for (const { model, ids } of loaded) {
    const settings = { temperature: 1, topK: 1, topP: 1 };
    assert.deepStrictEqual(plain(engine.sample(model, ids, 6, settings).ids), greedy(model, ids, 6));
  }
});
