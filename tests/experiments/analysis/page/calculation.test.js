'use strict';

const test = require('node:test');
const { engine, models, skip, assertClose } = require('./engine.js');

/** Fail unless numbers differ from those of JAX by less than 1e-5 of the largest of them. */
function assertSame(found, expected, name) {
  assertClose(found, expected, 1e-5 * Math.max(...expected.map(Math.abs)), name);
}

test('each step equals that of JAX', { skip }, () => {
  for (const { model, expected } of Object.values(models)) {
    const pass = engine.attendedBy(engine.loadModel(model), expected.source, expected.target);
    const rest = [...expected.steps]; // in the order in which JAX computes them
    const { encoder = [], decoder = [], cross = [] } = pass.attention;
    const check = (kind, layer) => checkLayer(pass, kind, layer, rest.shift(), expected.maps[kind]);
    encoder.forEach((_, layer) => check('encoder', layer));
    decoder.forEach((_, layer) => {
      check('decoder', layer);
      if (cross.length) check('cross', layer);
    });
    if (rest.length) throw new Error(`${rest.length} layers are not in the page`);
  }
});

function checkLayer(pass, kind, layer, steps, { weights: { [layer]: weights } }) {
  const { bias } = pass.attention[kind][layer].part.sublayer.output;
  for (const query of steps.query.keys()) {
    let parts = bias ? bias.data : steps.written[query].map(() => 0);
    for (const head of weights.keys()) {
      const shared = Math.floor((head * steps.key[0].length) / weights.length);
      const found = engine.calculationOf(pass, kind, layer, head, query);
      const [q, row] = [steps.query[query][head], weights[head][query]];
      const [keys, values] = [steps.key, steps.value].map((all) => all.map((each) => each[shared]));
      const products = keys.map((key) => engine.dot(q, key));
      const terms = values.map((value, s) => value.map((number) => row[s] * number));
      const all = { query: q, products, weights: row, sum: steps.sum[query][head] };
      for (const name of ['vector', 'normalized', 'written', 'change', 'result'])
        all[name] = steps[name][query];
      for (const [name, numbers] of Object.entries(all)) assertSame([...found[name]], numbers, name);
      const allowed = found.scores.map((score, s) => (found.allowed[s] ? score : -Infinity));
      assertSame([...engine.softmax(allowed)], row, 'softmax of the scores');
      assertSame(found.keys.flatMap((key) => [...key]), keys.flat(), 'keys');
      assertSame(found.terms.flatMap((term) => [...term]), terms.flat(), 'terms');
      parts = engine.add(parts, found.part);
    }
    assertSame([...parts], steps.written[query], 'parts of all heads and the bias');
  }
}
