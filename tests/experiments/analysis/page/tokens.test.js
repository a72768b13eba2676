'use strict';

const assert = require('node:assert');
const test = require('node:test');
const { engine, models, skip, plain } = require('./engine.js');

const TARGET = ['<pad>', '<bos>', '<eos>', "l'", 'Afrique', 'visite'];
const words = { kind: 'word', labels: TARGET, special: 3, apostrophes: true, problem: '' };
const model = { encoder: {}, target: words, begin: [1], end: 2 };

test('typed texts are read as in Python', { skip }, () => {
  for (const { model: data, texts } of Object.values(models)) {
    for (const { text, ids, labels, unknown, problem } of texts) {
      const found = plain(engine.readText(engine.loadModel(data), text));
      assert.equal(found.problem === '', !problem, `${text}: ${found.problem}, ${problem}`);
      if (problem) assert.match(found.problem, new RegExp(`${problem}`));
      else assert.deepStrictEqual({ text, ...found }, { text, ids, labels, unknown, problem });
    }
  }
});

test('unknown words of a prompt', () => {
  const source = { ...words, placeholder: 'Afrique' };
  const { encoder, ...alone } = { ...model, source, target_embedding: { max_length: 4 } };
  const { ids, labels, unknown } = engine.readText(alone, 'visite Mali');
  assert.deepStrictEqual(plain({ ids, labels, unknown }), {
    ids: [1, 5, 4],
    labels: ['<bos>', 'visite', 'Mali'],
    unknown: [2],
  });
  assert.deepStrictEqual(engine.readText(alone, '').ids, [1]);
  assert.match(engine.readText(alone, 'visite '.repeat(4)).problem, /4 tokens.* at most 3\./);
});

test('text of ids', () => {
  assert.equal(engine.writeText(model, [5, 3, 4, 2]), "visite l'Afrique");
  assert.equal(engine.writeText(model, [5, 4, 2], new Map([[1, 'Mali']])), 'visite Mali');
});

test('of equal pairs the first is merged', () => {
  const source = { kind: 'subword', pieces: ['▁', 'a', 'aa'], special: 0 };
  assert.deepStrictEqual(engine.splitSubwords(source, ' aaa '), ['▁', 'aa', 'a']);
});

test('text of subwords and bytes', () => {
  const pieces = ['▁l', "'", 'Afri', '<0xC3>', '<0xA9>', '▁x'];
  const target = { kind: 'subword', pieces, special: 0 };
  assert.equal(engine.writeText({ target }, [0, 1, 2, 3, 4, 5]), "l'Afrié x");
});

test('a text that the page cannot split', () => {
  const source = { ...words, problem: 'It cannot be split.' };
  const found = engine.readText({ ...model, source, target_embedding: { max_length: 9 } }, 'a');
  assert.equal(found.problem, 'It cannot be split.');
});

test('unknown words are copied to the places that attend to them most', () => {
  const part = { sublayer: { type: 'CrossAttention', scale: 5, softcap: null } };
  const key = [[[1, 0], [0, 1], [0, 0]]];
  const memory = { query: [[[0.9, 1], [-0.1, -0.1], [0, 1]]], key };
  const pass = {
    maps: { cross: { shape: [1, 1, 3, 3] } },
    attention: { cross: [{ stack: {}, part, memory }] },
    predicted: ['Afrique', 'visite', '<eos>'],
  };
  const read = { labels: ['Zoe', 'Mali', '<eos>'], unknown: [0, 1] };
  const copies = [...engine.copiedWords(model, pass, read)];
  assert.deepStrictEqual(plain(copies), [[0, 'Mali'], [1, 'Zoe']]);
  const one = engine.copiedWords(model, pass, { ...read, unknown: [0] }); // a token of Mali stays
  assert.deepStrictEqual(plain([...one]), [[1, 'Zoe']]);
  memory.query[0][1] = [0, 1];
  const left = engine.copiedWords(model, pass, { ...read, unknown: [0] });
  assert.deepStrictEqual(plain([...left]), [[3, 'Zoe']]);
  assert.equal(engine.writeText(model, [5, 5, 2], left), 'visite visite Zoe');
});
