'use strict';

const assert = require('node:assert');
const test = require('node:test');
const { engine, models, skip, assertClose } = require('./engine.js');

/** Return the layers of a pass in the order in which JAX computes them. */
function layersOf({ attention }) {
  const { encoder = [], decoder = [], cross = [] } = attention;
  const pair = (_, layer) => [['decoder', layer], ...(cross.length ? [['cross', layer]] : [])];
  return [...encoder.map((_, layer) => ['encoder', layer]), ...decoder.flatMap(pair)];
}

/** Fail unless numbers differ from those of JAX by less than 1e-5 of the largest of them. */
function assertSame(found, expected, name) {
  const most = Math.max(...expected.map(Math.abs));
  assertClose(found, expected, 1e-5 * most, name);
}

test('each step equals that of JAX', { skip }, () => {
  for (const [name, { model, expected }] of Object.entries(models)) {
    const pass = engine.attendedBy(engine.loadModel(model), expected.source, expected.target);
    const layers = layersOf(pass);
    assert.equal(layers.length, expected.steps.length);
    layers.forEach(([kind, layer], at) => {
      const steps = expected.steps[at];
      const weights = expected.maps[kind].weights[layer];
      for (const head of weights.keys()) {
        const shared = Math.floor((head * steps.key[0].length) / weights.length);
        for (const query of steps.query.keys()) {
          const found = engine.calculationOf(pass, kind, layer, head, query);
          const same = (part, numbers) => assertSame([...found[part]], numbers, `${part}, ${name}`);
          const [q, keys] = [steps.query[query][head], steps.key.map((each) => each[shared])];
          same('vector', steps.vector[query]);
          same('query', q);
          assertSame(found.keys.flatMap((key) => [...key]), keys.flat(), `keys, ${name}`);
          same('products', keys.map((key) => engine.dot(q, key)));
          same('weights', weights[head][query]);
          same('sum', steps.sum[query][head]);
          same('written', steps.written[query]);
          same('result', steps.result[query]);
          const terms = steps.value.map((each, s) =>
            each[shared].map((number) => weights[head][query][s] * number),
          );
          assertSame(found.terms.flatMap((term) => [...term]), terms.flat(), `terms, ${name}`);
          assert.deepStrictEqual(found.allowed, Array.from(weights[head][query], (each) => each > 0));
        }
      }
    });
  }
});

test('the parts of all heads and the bias sum to what is written', { skip }, () => {
  for (const { model, expected } of Object.values(models).filter(({ model }) => model.decoder)) {
    const loaded = engine.loadModel(model);
    const pass = engine.attendedBy(loaded, expected.source, expected.target);
    const { part, memory } = pass.attention.decoder[0];
    const found = memory.query.map((_, head) => engine.calculationOf(pass, 'decoder', 0, head, 1));
    const start = part.sublayer.output.bias?.data ?? found[0].written.map(() => 0);
    const sum = found.reduce((total, each) => engine.add(total, each.part), start);
    assertSame([...sum], [...found[0].written], 'parts');
  }
});
